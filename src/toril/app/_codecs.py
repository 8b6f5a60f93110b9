"""The codecs of the queues of an app: those of a queue, with those of its tasks, and those that children may have."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from toril.app.task import Task
from toril.protocol.codecs import Codecs, GivenCodecs, QueueCodecs
from toril.protocol.queue_name import QueueName


def queue_codecs(
    queue: QueueName, tasks: Iterable[Task], given: Callable[[QueueName], GivenCodecs]
) -> QueueCodecs | None:
    """The codecs of one queue; None if nothing in the app has codecs. `given` is what was said of a queue."""
    all_tasks = list(tasks)
    queues = dict.fromkeys([queue, *(one.queue for one in all_tasks)])
    by_queue = {name: _of_queue(name, all_tasks, given(name)) for name in queues}
    if all(one is None for one in by_queue.values()):
        return None
    own = by_queue[queue]
    children: dict[int, Codecs | None] = {}
    for one in by_queue.values():
        for each in (None,) if one is None else (*one.by_name.values(), one.default):
            children[id(each)] = each
    if own is None:
        return QueueCodecs({}, None, tuple(children.values()))
    return QueueCodecs(own.by_name, own.default, tuple(children.values()))


def _of_queue(queue: QueueName, tasks: Iterable[Task], given: GivenCodecs) -> QueueCodecs | None:
    said = QueueCodecs.of(given)
    own = {
        one.name: one.settings.codecs
        for one in tasks
        if one.queue == queue and one.settings.codecs is not None
    }
    if not own:
        return said
    if said is None:
        return QueueCodecs(own, None, ())
    return QueueCodecs({**said.by_name, **own}, said.default, ())
