"""Reading ahead: what Redis trims while a micro-batch is at work is not lost, and nothing is read twice."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.servers import Server
from tests.spark.factory import Factory
from toril.spark.pipeline.bronze.read_ahead import ReadAhead
from toril.spark.sources.positions import ORIGIN, Position, Stretch, end_of, read_stream_states, stretch

Factories = Callable[..., Factory]


@pytest.fixture
def ahead(valkey: Server) -> Iterator[ReadAhead]:
    reading = ReadAhead(valkey.url)
    yield reading
    reading.stop()


def end(queue: Factory) -> Position:
    states = read_stream_states(queue.transport, {queue.queue: queue.keys.events})
    return end_of(states[queue.queue])


def whole(queue: Factory, start: Position) -> Stretch:
    found = stretch(queue.queue, queue.keys.events, start, end(queue))
    assert found is not None
    return found


def await_reading(ahead: ReadAhead, queue: Factory, until: str) -> None:
    pause = threading.Event()
    for _ in range(200):
        if ahead._held[queue.queue].until == until:
            return
        pause.wait(0.05)
    raise TimeoutError("nobody reads ahead")


def test_events_that_are_trimmed_before_a_batch_are_still_there(
    ahead: ReadAhead, factory: Factories, valkey: Server
) -> None:
    queue = factory("trimmed")
    queue.add(5)
    start = end(queue)
    ahead.follow(queue.transport, {queue.queue: queue.keys.events})
    queue.add(20)
    await_reading(ahead, queue, end(queue).id)
    with valkey.client() as client:
        client.xtrim(queue.keys.events, maxlen=0, approximate=False)
    one = whole(queue, start)
    rest, here = ahead.cover(queue.transport, one)
    assert rest is None
    assert here is not None
    assert here.num_rows == one.expected == 40
    assert len(set(here["id"].to_pylist())) == 40


def test_what_came_before_it_followed_is_left_to_the_executors(ahead: ReadAhead, factory: Factories) -> None:
    queue = factory("divided")
    queue.add(10)
    middle = end(queue)
    ahead.follow(queue.transport, {queue.queue: queue.keys.events})
    queue.add(10)
    one = whole(queue, ORIGIN)
    rest, here = ahead.cover(queue.transport, one)
    assert rest is not None
    assert here is not None
    assert (rest.start, rest.end.id) == (ORIGIN, middle.id)
    assert here.num_rows == 20


def test_batches_get_each_event_once(ahead: ReadAhead, factory: Factories) -> None:
    queue = factory("batches")
    queue.add(1)
    ahead.follow(queue.transport, {queue.queue: queue.keys.events})
    start, seen = end(queue), []
    for _ in range(4):
        queue.add(3)
        one = whole(queue, start)
        _, here = ahead.cover(queue.transport, one)
        assert here is not None
        seen += here["id"].to_pylist()
        start = one.end
    assert len(seen) == len(set(seen)) == 24


def test_a_stream_that_began_anew_is_left_to_the_executors(
    ahead: ReadAhead, factory: Factories, valkey: Server
) -> None:
    queue = factory("anew")
    queue.add(10)
    ahead.follow(queue.transport, {queue.queue: queue.keys.events})
    start = end(queue)
    with valkey.client() as client:
        client.delete(queue.keys.events)
    queue.add(2)
    one = whole(queue, start)
    assert one.recreated
    assert ahead.cover(queue.transport, one) == (one, None)


def test_a_batch_may_end_in_the_middle_of_what_is_held(ahead: ReadAhead, factory: Factories) -> None:
    queue = factory("middle")
    queue.add(1)
    ahead.follow(queue.transport, {queue.queue: queue.keys.events})
    start = end(queue)
    queue.add(10)
    middle = end(queue)
    queue.add(10)
    await_reading(ahead, queue, end(queue).id)
    first = stretch(queue.queue, queue.keys.events, start, middle)
    assert first is not None
    _, here = ahead.cover(queue.transport, first)
    _, rest = ahead.cover(queue.transport, whole(queue, middle))
    assert here is not None
    assert rest is not None
    assert (here.num_rows, rest.num_rows) == (20, 20)
    assert not set(here["id"].to_pylist()) & set(rest["id"].to_pylist())
