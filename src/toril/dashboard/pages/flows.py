"""Flows: the tree of a job and its children as a graph."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, Final

from toril.commands import pages, read
from toril.commands.command import Command
from toril.commands.pages import JobPage
from toril.dashboard._flow_graph import FlowNodeView, draw_flow
from toril.dashboard._rows import text_of
from toril.dashboard._sources import QueueSource, ShownQueue
from toril.dashboard._view import Page, PageNotFound, View
from toril.errors import TorilError
from toril.protocol.keys import QueueKeys
from toril.protocol.state import JobState

MOST_DEPTH: Final = 6
MOST_CHILDREN: Final = 30
MOST_NODES: Final = 300
MOST_ROOTS: Final = 30


@dataclass(slots=True)
class _Node:
    """A job of a flow while the tree is read."""

    keys: QueueKeys
    job_id: str
    depth: int
    name: str = ""
    state: str = "unknown"
    error: str = ""
    hidden: int = 0
    children: list[_Node] = field(default_factory=list)


async def flows(view: View) -> Page:
    seen = await view.sources.overview(view.access)
    root = view.query("root")
    values: dict[str, object] = {
        "errors": seen.errors,
        "now_ms": seen.now_ms,
        "root": root,
        "picture": None,
        "roots": [],
    }
    if root:
        values |= await _graph(view, seen.queues, root)
    else:
        values["roots"] = await _waiting_parents(seen.queues)
    return Page(template="flows", title="Flows", place="flows", values=values)


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


async def _graph(view: View, shown: list[ShownQueue], root: str) -> dict[str, object]:
    queue_id, _, job_id = root.partition("/")
    queue = next((one for one in shown if one.id == queue_id and one.is_bullmq and one.figures), None)
    if queue is None or not job_id:
        raise PageNotFound(f"there is no job {root!r}")
    by_base = {
        one.keys.base: one for one in shown if one.is_bullmq and one.figures and one.source is queue.source
    }
    tree = await _read_tree(queue.source, queue.keys, job_id, by_base)
    nodes = _flatten(tree, view, by_base)
    counts: dict[str, int] = {}
    for node in nodes:
        counts[node.state] = counts.get(node.state, 0) + 1
    return {
        "picture": draw_flow(nodes),
        "counts": counts,
        "nodes": nodes,
        "queue": queue,
        "job_id": job_id,
        "is_cut": len(nodes) >= MOST_NODES,
    }


async def _read_tree(
    source: QueueSource, keys: QueueKeys, job_id: str, by_base: dict[str, ShownQueue]
) -> _Node:
    """Reads a flow level by level, each in one pipeline."""
    root = _Node(keys, job_id, 0)
    level, count = [root], 1
    while level:
        children = await _read_level(source, level)
        following: list[_Node] = []
        for node, kinds in zip(level, children, strict=True):
            for kind in kinds if node.depth + 1 < MOST_DEPTH else []:
                for key in kind[:MOST_CHILDREN]:
                    child = _child(key, node.depth + 1, by_base)
                    if child is not None and count < MOST_NODES:
                        node.children.append(child)
                        following.append(child)
                        count += 1
                node.hidden += max(0, len(kind) - MOST_CHILDREN)
        level = following
    return root


def _child(key: str, depth: int, by_base: dict[str, ShownQueue]) -> _Node | None:
    base, _, job_id = key.rpartition(":")
    queue = by_base.get(f"{base}:")
    return _Node(queue.keys, job_id, depth) if queue is not None else None


async def _read_level(source: QueueSource, nodes: list[_Node]) -> list[list[list[str]]]:
    """Completes the nodes of one level; returns the keys of children of each node, by kind."""
    commands: list[tuple[Command[Any], ...]] = [
        (
            read.get_state(node.keys, node.job_id),
            pages.job_fields(node.keys, node.job_id, ("name", "failedReason"), longest=500, max_bytes=1000),
            *pages.some_children(node.keys, node.job_id, MOST_CHILDREN),
        )
        for node in nodes
    ]
    replies = iter(await source.transport.run_many([one for group in commands for one in group]))
    children = []
    for node, group in zip(nodes, commands, strict=True):
        state, fields, *kinds = itertools.islice(replies, len(group))
        children.append([kind for kind in kinds if not isinstance(kind, TorilError)])
        if isinstance(state, TorilError) or isinstance(fields, TorilError):
            continue
        node.state = JobState.parse(state).value
        node.name = text_of(fields["name"], "name")
        node.error = text_of(fields["failedReason"], "error")
    return children


def _flatten(root: _Node, view: View, by_base: dict[str, ShownQueue]) -> list[FlowNodeView]:
    nodes: list[FlowNodeView] = []

    def visit(node: _Node, parent: int | None) -> None:
        queue = by_base[node.keys.base]
        at = len(nodes)
        nodes.append(
            FlowNodeView(
                label=node.name or node.job_id,
                queue=queue.id,
                job_id=node.job_id,
                state=node.state,
                error=str(view.redacted(queue.id, "error", node.error)),
                parent=parent,
                depth=node.depth,
                link=view.link("queues", queue.id, "job", id=node.job_id),
            )
        )
        for child in node.children:
            visit(child, at)

    visit(root, None)
    return nodes
