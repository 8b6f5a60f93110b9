"""The tasks of the web examples: an app that every framework can use."""

from __future__ import annotations

from toril import App, Context

app = App(name="thumbnails")


@app.task(queue="thumbnails", attempts=3)
async def make_thumbnails(ctx: Context, name: str, sizes: int = 3) -> list[str]:
    """Makes some files, and reports how far it is."""
    made = []
    for size in range(1, sizes + 1):
        made.append(f"{name}-{size}.png")
        await ctx.progress(100 * size // sizes)
    return made


@app.task(queue="thumbnails")
async def fail(reason: str) -> None:
    """Fails."""
    raise ValueError(reason)
