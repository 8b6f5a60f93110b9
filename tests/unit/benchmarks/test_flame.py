"""A flame graph shows where CPU went, function by function."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from benchmarks.flame import draw, tree

LOOP = "main (adapter.py:9);BaseEventLoop.run_forever (asyncio/base_events.py:607)"
STACKS = [
    f"{LOOP};work (toril/a.py:1);read (toril/b.py:5) 30",
    f"{LOOP};work (toril/a.py:2);write (redis/c.py:5) 10",
    f"{LOOP};EpollSelector.select (selectors.py:468) 500",
    "main (adapter.py:2);import_everything (importlib.py:1) 99",
]


def test_samples_of_one_function_belong_together_whatever_their_line() -> None:
    root = tree(STACKS)
    (work,) = root.children.values()
    assert (work.name, work.samples) == ("work (toril/a.py)", 40)
    assert {child.name: child.samples for child in work.children.values()} == {
        "read (toril/b.py)": 30,
        "write (redis/c.py)": 10,
    }


def test_start_up_and_waiting_for_the_server_are_no_work() -> None:
    assert tree(STACKS).samples == 40


def test_a_box_is_as_wide_as_its_share() -> None:
    picture = ET.fromstring(draw(tree(STACKS), "a worker"))
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert "read (toril/b.py): 75.0%" in titles
    widths = [float(rect.get("width", "nan")) for rect in picture.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths[0] == widths[1] > widths[2] > widths[3]
