"""A task with codecs that runs in processes: a child imports it from here."""

from __future__ import annotations

from tests.integration.codecs.keys import KEY
from toril import App
from toril.app import BlockingContext
from toril.codecs import AesGcm, Codecs

app = App()


@app.task(queue="words", executor="process", codecs=Codecs([AesGcm({"a": KEY})]))
def shout(ctx: BlockingContext, text: str) -> str:
    ctx.log("shouted")
    return text.upper()
