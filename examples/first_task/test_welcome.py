"""Tests of the application, without a server and with one."""

from __future__ import annotations

from collections.abc import Callable

from welcome import Receipt, app, register, send_welcome

from toril import App
from toril.testing import TestClock, drain


async def test_a_customer_is_welcomed_a_minute_after_the_registration() -> None:
    with app.testing("capture") as captured:
        await register("ada@example.com")
    call = captured.assert_enqueued(send_welcome, to="ada@example.com", name="ada")
    assert call.options.delay == 60


async def test_the_receipt_has_the_length_of_the_text() -> None:
    with app.testing("inline"):
        job = await send_welcome.enqueue("ada@example.com", name="Ada")
        assert await job.result() == Receipt("ada@example.com", 13)


async def test_the_job_runs_when_its_time_has_come(
    toril_app: Callable[[App], App], toril_clock: TestClock
) -> None:
    async with toril_app(app):
        await register("ada@example.com")
        assert (await drain(app)).processed == 0
        await toril_clock.advance(60)
        assert (await drain(app)).processed == 1
