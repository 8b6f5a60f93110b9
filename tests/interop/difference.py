"""Where two keyspaces differ, with the place: key, part, left, right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from tests.interop.keyspace import Content, Entry, Keyspace

TTL_TOLERANCE_MS = 5_000  # The two servers ran the same step moments apart; a wrong unit is off by far more.
ABSENT = "—"


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    key: str
    part: str
    left: str
    right: str

    def __str__(self) -> str:
        return f"{self.key} {self.part}\n    left:  {self.left}\n    right: {self.right}"


def differences(
    left: Keyspace, right: Keyspace, *, ttl_tolerance: int = TTL_TOLERANCE_MS
) -> list[Difference]:
    """All of them, in the order of the keys; an empty list means that there is no difference."""
    found: list[Difference] = []
    for key in sorted(left.keys() | right.keys()):
        found += _of_key(key, left.get(key), right.get(key), ttl_tolerance)
    return found


def report(found: list[Difference], *, left: str = "left", right: str = "right") -> str:
    lines = [f"{len(found)} difference(s), left is {left}, right is {right}"]
    return "\n".join([*lines, *(str(difference) for difference in found)])


def _of_key(key: str, left: Entry | None, right: Entry | None, tolerance: int) -> Iterator[Difference]:
    if left is None or right is None:
        yield Difference(key=key, part="exists", left=_short(left), right=_short(right))
        return
    if left.kind != right.kind:
        yield Difference(key=key, part="type", left=left.kind, right=right.kind)
        return
    yield from _of_content(key, left.content, right.content)
    if not _expire_alike(left.ttl, right.ttl, tolerance):
        yield Difference(key=key, part="ttl", left=str(left.ttl), right=str(right.ttl))


def _of_content(key: str, left: Content, right: Content) -> Iterator[Difference]:
    if left == right:
        return
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        yield from _of_fields(key, "", left, right)
    elif isinstance(left, list) and isinstance(right, list):
        yield from _of_items(key, left, right)
    else:
        yield Difference(key=key, part="value", left=str(left), right=str(right))


def _of_fields(
    key: str, where: str, left: Mapping[str, str], right: Mapping[str, str]
) -> Iterator[Difference]:
    for name in sorted(left.keys() | right.keys()):
        one, other = left.get(name, ABSENT), right.get(name, ABSENT)
        if one != other:
            yield Difference(key=key, part=f"{where}field {name}", left=one, right=other)


def _of_items(key: str, left: Sequence[object], right: Sequence[object]) -> Iterator[Difference]:
    for index, (one, other) in enumerate(zip_longest(left, right, fillvalue=ABSENT)):
        if one == other:
            continue
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _of_fields(key, f"entry {index} ", one, other)
        else:
            yield Difference(key=key, part=f"item {index}", left=str(one), right=str(other))


def _expire_alike(left: int | None, right: int | None, tolerance: int) -> bool:
    if left is None or right is None:
        return left is right
    return abs(left - right) <= tolerance


def _short(entry: Entry | None) -> str:
    return ABSENT if entry is None else f"{entry.kind} {entry.content}"
