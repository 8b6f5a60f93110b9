"""Draws a flow as SVG: the root at the left, children to its right, one box for each job.

Guarantee: every text is escaped; the state of a job is written in its box, not shown by colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup, escape

from toril.dashboard._states import STATE_SIGNS
from toril.dashboard._texts import shortened

_WIDE, _TALL, _GAP_X, _GAP_Y, _EDGE = 190, 40, 56, 12, 8
_MAX_CHARACTERS: Final = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowNodeView:
    """A job of a flow: what its box says, and which box is its parent's."""

    label: str
    queue: str
    job_id: str
    state: str
    error: str
    parent: int | None
    depth: int
    link: str
    hidden: int = 0  # children that are not in the picture
    is_here: bool = False  # the job of the page


def draw_flow(nodes: Sequence[FlowNodeView]) -> Markup:
    """Returns the picture; nodes are in the order of a walk, a parent before its children."""
    heights = _rows(nodes)
    width = (max(one.depth for one in nodes) + 1) * (_WIDE + _GAP_X) - _GAP_X + 2 * _EDGE
    height = (max(heights) + 1) * (_TALL + _GAP_Y) - _GAP_Y + 2 * _EDGE
    parts = [_edge(nodes, heights, at) for at in range(len(nodes)) if nodes[at].parent is not None]
    parts += [_box(node, row) for node, row in zip(nodes, heights, strict=True)]
    return Markup(
        '<svg class="flow" viewBox="0 0 {w} {h}" width="{w}" height="{h}" role="group" '
        'aria-label="The jobs of the flow and their states; the table below has the same">{body}</svg>'
    ).format(w=f"{width:.0f}", h=f"{height:.0f}", body=Markup("").join(parts))


def _rows(nodes: Sequence[FlowNodeView]) -> list[float]:
    """Returns the row of each node: leaves one below the other, a parent in the middle of its children."""
    children: dict[int, list[int]] = {}
    for at, node in enumerate(nodes):
        if node.parent is not None:
            children.setdefault(node.parent, []).append(at)
    rows = [0.0] * len(nodes)
    leaf = 0
    for at in range(len(nodes)):
        if at not in children:
            rows[at] = leaf
            leaf += 1
    for at in reversed(range(len(nodes))):
        if at in children:
            rows[at] = (rows[children[at][0]] + rows[children[at][-1]]) / 2
    return rows


def _box_position(node: FlowNodeView, row: float) -> tuple[float, float]:
    return _EDGE + node.depth * (_WIDE + _GAP_X), _EDGE + row * (_TALL + _GAP_Y)


def _edge(nodes: Sequence[FlowNodeView], rows: Sequence[float], at: int) -> Markup:
    parent = nodes[at].parent or 0
    x1, y1 = _box_position(nodes[parent], rows[parent])
    x2, y2 = _box_position(nodes[at], rows[at])
    x1, middle = x1 + _WIDE, _TALL / 2
    bend = (x1 + x2) / 2
    path = f"M{x1} {y1 + middle}C{bend} {y1 + middle} {bend} {y2 + middle} {x2} {y2 + middle}"
    return Markup('<path class="edge" d="{}"/>').format(path)


def _box(node: FlowNodeView, row: float) -> Markup:
    x, y = _box_position(node, row)
    sign = STATE_SIGNS.get(node.state, "?")
    return Markup(
        '<a href="{link}"><g class="node state-{state}{here}"><title>{tip}</title>'
        '<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5"/><rect class="bar" x="{x}" y="{y}" width="4" '
        'height="{h}" rx="2"/><text x="{tx}" y="{t1}">{name}</text>'
        '<text class="soft" x="{tx}" y="{t2}">{sign} {words}</text></g></a>'
    ).format(
        link=node.link,
        state=node.state,
        here=" here" if node.is_here else "",
        tip=escape(shortened(f"{node.queue} {node.job_id} {node.state} {node.error}", 300)),
        x=x,
        y=y,
        w=_WIDE,
        h=_TALL,
        tx=x + 12,
        t1=y + 17,
        t2=y + 32,
        name=shortened(node.label, _MAX_CHARACTERS),
        sign=sign,
        words=shortened(_words(node), _MAX_CHARACTERS + 3),
    )


def _words(node: FlowNodeView) -> str:
    return f"{node.state} · {f'+{node.hidden:,} more' if node.hidden else node.queue}"
