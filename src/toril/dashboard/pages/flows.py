"""Flows: the tree of a job and its children as a graph."""

from __future__ import annotations

from collections import Counter
from typing import Final

from toril.commands import pages
from toril.commands.pages import JobPage
from toril.dashboard._flow_graph import draw_flow
from toril.dashboard._flow_tree import flow_nodes, tree_command
from toril.dashboard._rows import text_of
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import Page, PageNotFound, View
from toril.protocol.state import JobState

MOST_ROOTS: Final = 30


async def flows(view: View) -> Page:
    root = view.query("root")
    if root:
        values = {"errors": {}, "roots": [], **await _graph(view, root)}
    else:
        seen = await view.sources.overview(view.access)
        values = {
            "errors": seen.errors,
            "now_ms": seen.now_ms,
            "picture": None,
            "roots": await _waiting_parents(seen.queues),
        }
    return Page(template="flows", title="Flows", place="flows", values={"root": root, **values})


async def _waiting_parents(shown: list[ShownQueue]) -> list[dict[str, object]]:
    """Returns jobs that wait for their children, newest first, of all queues."""
    found: list[dict[str, object]] = []
    queues = [one for one in shown if one.figures and one.figures.states.get("waiting-children")]
    for queue, page in await _first_pages(queues[:MOST_ROOTS]):
        found += (
            {
                "queue": queue,
                "id": row.id,
                "name": text_of(row.fields.get("name"), "name"),
                "added_ms": float(row.fields["timestamp"] or 0)
                if isinstance(row.fields["timestamp"], bytes) and row.fields["timestamp"].isdigit()
                else None,
            }
            for row in page.rows
        )
    return found[:MOST_ROOTS]


async def _first_pages(queues: list[ShownQueue]) -> list[tuple[ShownQueue, JobPage]]:
    """Returns the first page of parents of each queue, read in one pipeline for each server."""
    read: list[tuple[ShownQueue, JobPage]] = []
    for source in dict.fromkeys(one.source for one in queues):
        own = [one for one in queues if one.source is source]
        commands = [
            pages.job_page(
                one.keys, JobState.WAITING_CHILDREN, limit=MOST_ROOTS, fields=("name", "timestamp")
            )
            for one in own
        ]
        read += zip(own, await source.run_all(*commands), strict=True)
    return read


async def _graph(view: View, root: str) -> dict[str, object]:
    queue, job_id = await _root_of(view, root)
    if queue is None or not queue.is_bullmq or not job_id:
        raise PageNotFound(f"there is no job {root!r}")
    tree = await queue.source.run(tree_command(queue, job_id))
    nodes = await flow_nodes(view, queue, tree)
    if not nodes or (nodes[0].state == "unknown" and not tree[0].children.total):
        raise PageNotFound(f"there is no job {root!r}")
    return {
        "picture": draw_flow(nodes),
        "counts": Counter(node.state for node in nodes),
        "nodes": nodes,
        "queue": queue,
        "job_id": job_id,
        "hidden": sum(node.hidden for node in nodes),
    }


async def _root_of(view: View, root: str) -> tuple[ShownQueue | None, str]:
    """Returns the queue and the id that `QUEUE/ID` names; names of queues and ids may have slashes, too."""
    await view.sources.find(root.partition("/")[0], view.access)  # the queues are known from now on
    known = {one.id: one for source in view.sources.all for one in source.known_queues(view.access)}
    ends = (at for at in reversed(range(len(root))) if root[at] == "/")
    end = next((at for at in ends if root[:at] in known), None)
    return (None, "") if end is None else (known[root[:end]], root[end + 1 :])
