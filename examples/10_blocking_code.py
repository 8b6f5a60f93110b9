"""The same without asyncio, for scripts, Flask and Django: `toril.sync` has the same names, and they block."""

from __future__ import annotations

from toril import sync

app = sync.App()


@app.task(queue="thumbnails", executor="thread")
def resize(ctx: sync.Context, name: str, width: int = 100) -> str:
    ctx.progress(100)
    return f"{name}-{width}.png"


def main() -> None:
    with app, app.worker(concurrency=4):
        job = resize.enqueue("cat", width=64)
        print(job.result(timeout=10))
    with sync.Queue("thumbnails") as queue:
        print(queue.get_job_counts().completed, "completed")


main()

# prints:
# cat-64.png
# 1 completed
