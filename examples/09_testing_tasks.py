"""Tests of tasks without a server: `capture` records the calls, `inline` runs them at once.

With pytest there are fixtures with an embedded server, too: see first_task/test_welcome.py.
"""

from __future__ import annotations

import asyncio

from toril import App, JobFailed, TransientError
from toril.testing import assert_enqueued

app = App()


@app.task(queue="emails", attempts=3)
async def send(to: str) -> str:
    if not to.endswith(".org"):
        raise TransientError("the server does not answer")
    return f"sent to {to}"


async def register(address: str) -> None:
    """The code that is tested."""
    await send.options(delay=60).enqueue(address)


async def main() -> None:
    with app.testing("capture"):
        await register("ada@example.org")
        call = assert_enqueued(send, to="ada@example.org")
        print("delayed by", call.options.delay)
    with app.testing("inline"):
        print(await (await send.enqueue("ada@example.org")).result())
        failing = await send.enqueue("ada@example.com")
        try:
            await failing.result()
        except JobFailed as failure:
            print(failure.reason, "after", failing.attempts_made, "attempts")


asyncio.run(main())

# prints:
# delayed by 60.0
# sent to ada@example.org
# the server does not answer after 3 attempts
