"""`python -m benchmarks.flame FILE.svg`: draws a flame graph of the CPU time of toril's worker.

Guarantee: a sampling profiler (py-spy, in its own virtual environment) samples an unmodified worker from another
process. Time spent waiting for the server is left out.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from benchmarks.contenders import INSTALL_ROOT, TORIL
from benchmarks.installation import install_pinned
from tests.servers import Server

REQUIREMENTS = Path(__file__).resolve().parent / "profiler" / "requirements.txt"
JOBS, CONCURRENCY, SAMPLES_PER_SECOND = 60_000, 100, 500
WIDTH, ROW, TOP = 1200, 18, 40
SMALLEST = 1.0  # Narrower boxes are too small to read and are left out.
ROOT_FRAME = "run_forever"  # frames outside it are start-up and are left out
WAITING = "select (selectors.py"
PLACE = re.compile(r"^(?P<name>.*) \((?P<file>[^)]*?):\d+\)$")
COLOURS = {"toril/": "#2f8f6e", "redis/": "#c98b2b", "asyncio/": "#7b8fc7", "": "#a9b1ba"}


@dataclass(slots=True)
class Box:
    """A function at its position in the call tree, and the number of its samples."""

    name: str
    samples: int = 0
    children: dict[str, Box] = field(default_factory=dict)

    def add(self, frames: list[str], samples: int) -> None:
        self.samples += samples
        if frames:
            self.children.setdefault(frames[0], Box(frames[0])).add(frames[1:], samples)

    @property
    def depth(self) -> int:
        return 1 + max((child.depth for child in self.children.values()), default=0)


def tree(lines: Iterable[str]) -> Box:
    """Returns the call tree of collapsed stacks (`frame;frame;… count`), from the event loop down."""
    root = Box("worker")
    for line in lines:
        stack, _, count = line.strip().rpartition(" ")
        frames = stack.split(";")
        starts = [at for at, frame in enumerate(frames) if frame.startswith(f"BaseEventLoop.{ROOT_FRAME}")]
        starts = starts or [at for at, frame in enumerate(frames) if ROOT_FRAME in frame]
        if starts and WAITING not in frames[-1]:
            root.add([_frame_name(frame) for frame in frames[starts[-1] + 1 :]], int(count))
    return root


def _frame_name(frame: str) -> str:
    """Returns function and file without the line number, so that samples of one function are grouped."""
    found = PLACE.match(frame.strip())
    return f"{found['name']} ({found['file']})" if found else frame.strip()


def draw(root: Box, title: str) -> str:
    """Returns the tree as SVG. The width of a box is its share of samples; its tooltip has name and share."""
    height = TOP + root.depth * ROW + 10
    boxes = "\n".join(_boxes(root, 0.0, 0, root.samples or 1))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}' "
        f"font-family='system-ui, sans-serif' font-size='11'>\n"
        f"<text x='6' y='22' font-size='14' fill='#57606a'>{escape(title)}</text>\n{boxes}\n</svg>\n"
    )


def _boxes(box: Box, x: float, level: int, total: int) -> Iterator[str]:
    width = box.samples / total * WIDTH
    if width < SMALLEST:
        return
    y = TOP + level * ROW
    characters = int(width / 6)
    label = escape(box.name[:characters]) if characters > 3 else ""
    yield (
        f"<g><title>{escape(box.name)}: {box.samples / total:.1%}</title>"
        f"<rect x='{x:.1f}' y='{y}' width='{width - 0.5:.1f}' height='{ROW - 1}' fill='{_colour(box.name)}'/>"
        f"<text x='{x + 3:.1f}' y='{y + 13}' fill='#fff'>{label}</text></g>"
    )
    for child in sorted(box.children.values(), key=lambda one: -one.samples):
        yield from _boxes(child, x, level + 1, total)
        x += child.samples / total * WIDTH


def _colour(name: str) -> str:
    return next(colour for part, colour in COLOURS.items() if part in name)


def record(folder: Path) -> list[str]:
    """Returns the collapsed stacks of a worker that processes a full queue."""
    home = INSTALL_ROOT / "profiler"
    install_pinned("py-spy", home, [REQUIREMENTS], python=True)
    stacks = folder / "stacks"
    with Server.valkey() as server:
        parameters = {
            "url": server.url,
            "queue": "flame",
            "jobs": JOBS,
            "concurrency": CONCURRENCY,
            "uvloop": False,
        }
        subprocess.run(
            [*TORIL.command, json.dumps({**parameters, "task": "bulk"})], check=True, capture_output=True
        )
        spy = [str(home / "bin" / "py-spy"), "record", "--rate", str(SAMPLES_PER_SECOND), "--format", "raw"]
        worker = [*TORIL.command, json.dumps({**parameters, "task": "process"})]
        subprocess.run([*spy, "--output", str(stacks), "--", *worker], check=True, capture_output=True)
    return stacks.read_text(encoding="utf-8").splitlines()


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = tree(record(Path(folder)))
    target.parent.mkdir(parents=True, exist_ok=True)
    title = f"toril's worker, concurrency {CONCURRENCY}: {root.samples:,} samples of CPU"
    target.write_text(draw(root, title), encoding="utf-8")
    print(f"{target}: {root.samples} samples")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/performance/flame.svg"))
