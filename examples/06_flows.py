"""A parent that runs after its children: the pages of a book, and then the book."""

from __future__ import annotations

import asyncio

from toril import FlowNode, FlowProducer, Job, Worker


async def handle(job: Job) -> int:
    if job.name == "page":
        return len(job.data["text"].split())
    return sum((await job.get_children_values()).values())


async def main() -> None:
    pages = [FlowNode("page", queue="books", data={"text": text}) for text in ("one two", "three", "four")]
    async with FlowProducer() as flows:
        flow = await flows.add(FlowNode("book", queue="books", children=pages))
        print(await flow.job.get_state(), "with", len(flow.children), "children")
        async with Worker("books", handle, concurrency=4):
            print(await flow.job.wait_until_finished(timeout=10), "words")


asyncio.run(main())

# prints:
# waiting-children with 3 children
# 4 words
