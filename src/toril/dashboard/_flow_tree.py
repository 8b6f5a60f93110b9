"""Reads a flow as a tree of jobs, for its graph.

Guarantee: two round trips, whatever the number of jobs and levels; jobs of queues that are not granted are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from toril.commands import pages, read
from toril.commands.command import Command
from toril.commands.pages import FlowNode
from toril.dashboard._flow_graph import FlowNodeView
from toril.dashboard._rows import text_of
from toril.dashboard._sources import ShownQueue
from toril.dashboard._view import View
from toril.errors import TorilError
from toril.protocol.state import JobState

MOST_DEPTH: Final = 6
MOST_CHILDREN: Final = 30
MOST_NODES: Final = 300


@dataclass(frozen=True, slots=True)
class _Placed:
    """A job of a flow whose queue is shown."""

    node: FlowNode
    queue: ShownQueue
    job_id: str
    parent: int | None  # among the placed ones


def tree_command(
    queue: ShownQueue,
    job_id: str,
    *,
    max_depth: int = MOST_DEPTH,
    max_children: int = MOST_CHILDREN,
    max_nodes: int = MOST_NODES,
) -> Command[list[FlowNode]]:
    return pages.flow_tree(
        queue.keys, job_id, max_depth=max_depth, max_children=max_children, max_nodes=max_nodes
    )


async def flow_nodes(view: View, queue: ShownQueue, nodes: Sequence[FlowNode]) -> list[FlowNodeView]:
    """Returns the jobs of a tree with their states, each parent before its children."""
    known = queue.source.known_queues(view.access)
    placed = _placed(nodes, {one.keys.base: one for one in known if one.is_bullmq and one.figures})
    states = [read.get_state(one.queue.keys, one.job_id) for one in placed]
    nameless = [at for at, one in enumerate(placed) if not one.node.name]
    names = [
        pages.job_fields(
            placed[at].queue.keys,
            placed[at].job_id,
            ("name",),
            longest=pages.ROW_VALUE_BYTES,
            max_bytes=pages.ROW_VALUE_BYTES,
        )
        for at in nameless
    ]
    replies = await queue.source.transport.run_many([*states, *names])
    for at, fields in zip(nameless, replies[len(states) :], strict=True):
        if not isinstance(fields, TorilError):
            known_as = text_of(fields["name"], "name")
            placed[at] = replace(placed[at], node=replace(placed[at].node, name=known_as))
    return _in_order(view, placed, replies)


def _placed(nodes: Sequence[FlowNode], by_base: Mapping[str, ShownQueue]) -> list[_Placed]:
    placed: list[_Placed] = []
    places: dict[int | None, int | None] = {None: None}
    for at, node in enumerate(nodes):
        base = _base_of(node.key, by_base)
        if base:
            places[at] = len(placed)
            placed.append(_Placed(node, by_base[base], node.key[len(base) :], places.get(node.parent)))
    return placed


def _base_of(key: str, bases: Collection[str]) -> str:
    """Returns the longest of the bases that a key begins with: an id may contain colons."""
    ends = (at + 1 for at in reversed(range(len(key))) if key[at] == ":")
    return next((key[:end] for end in ends if key[:end] in bases), "")


def _in_order(view: View, placed: list[_Placed], states: Sequence[object]) -> list[FlowNodeView]:
    children: dict[int | None, list[int]] = {}
    for at, one in enumerate(placed):
        children.setdefault(one.parent, []).append(at)
    views: list[FlowNodeView] = []

    def visit(at: int, parent: int | None, depth: int) -> None:
        one, state = placed[at], states[at]
        below, place = children.get(at, []), len(views)
        views.append(
            FlowNodeView(
                label=one.node.name or one.job_id,
                queue=one.queue.id,
                job_id=one.job_id,
                state="unknown" if isinstance(state, TorilError) else JobState.parse(str(state)).value,
                error=str(view.redacted(one.queue.id, "error", one.node.error)) if one.node.error else "",
                parent=parent,
                depth=depth,
                link=view.link("queues", one.queue.id, "job", id=one.job_id),
                hidden=one.node.children.total - len(below),
            )
        )
        for child in below:
            visit(child, place, depth + 1)

    for root in children.get(None, []):
        visit(root, None, 0)
    return views
