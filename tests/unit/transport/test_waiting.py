"""Tasks that miss a cancellation are cancelled again, soon enough for those who wait for them."""

from __future__ import annotations

import asyncio

from toril.transport.waiting import CANCEL_AGAIN, GRACE_SECONDS, cancel_and_wait


async def test_a_task_that_misses_cancellations_is_cancelled_until_it_ends() -> None:
    missed = 0

    async def login() -> None:
        nonlocal missed
        while missed < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                missed += 1
        await asyncio.Event().wait()

    task = asyncio.create_task(login())
    await asyncio.sleep(0)
    await cancel_and_wait(task)
    assert task.cancelled()
    assert missed == 3


def test_a_login_may_miss_several_cancellations_while_a_cancelled_task_waits_for_its_end() -> None:
    """Otherwise each of several things that are closed in turn would take the whole time that its waiter grants."""
    assert 4 * CANCEL_AGAIN <= GRACE_SECONDS
