"""Keys: Node's layout, the cluster's, and names that can break neither."""

from __future__ import annotations

import base64
import pickle

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from toril.errors import InvalidOption
from toril.protocol.keys import (
    RESERVED_IDS,
    ListKeys,
    QueueKeys,
    StreamKeys,
    check_job_id,
    check_text,
    client_name,
    consumer_name,
    has_hash_tag,
    hash_tag_of,
)


def hashed_part(key: str) -> str:
    """The part of a key that a cluster hashes, by the rule in Redis' cluster specification."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    return key[start + 1 : end] if end > start + 1 else key


def test_a_queue_on_one_server_has_nodes_layout() -> None:
    keys = QueueKeys("emails")
    assert keys.base == "bull:emails:"
    assert keys.qualified == "bull:emails"
    assert keys.wait == "bull:emails:wait"
    assert keys.waiting_children == "bull:emails:waiting-children"
    assert keys.stalled_check == "bull:emails:stalled-check"
    assert keys.job("7") == "bull:emails:7"
    assert keys.lock("7") == "bull:emails:7:lock"
    assert keys.logs("7") == "bull:emails:7:logs"
    assert keys.dependencies("7") == "bull:emails:7:dependencies"
    assert keys.processed("7") == "bull:emails:7:processed"
    assert keys.ignored_failures("7") == "bull:emails:7:failed"
    assert keys.unsuccessful("7") == "bull:emails:7:unsuccessful"
    assert keys.deduplication("x:y") == "bull:emails:de:x:y"
    assert keys.metrics("completed") == "bull:emails:metrics:completed"
    assert keys.toril("workers") == "bull:emails:toril:workers"


def test_a_queue_on_a_cluster_has_one_slot() -> None:
    keys = QueueKeys("emails").resolve(cluster=True)
    assert keys.wait == "bull:{emails}:wait"
    assert keys.node_name == "{emails}"
    parts = {hashed_part(key) for key in (keys.wait, keys.job("7"), keys.lock("{x}"), keys.toril("y"))}
    assert parts == {"emails"}


def test_an_explicit_choice_of_layout_is_kept() -> None:
    assert QueueKeys("q", hash_tag=False).resolve(cluster=True).base == "bull:q:"
    assert QueueKeys("q", hash_tag=True).resolve(cluster=False).base == "bull:{q}:"
    assert QueueKeys("q").resolve(cluster=False).base == "bull:q:"


@pytest.mark.parametrize(("name", "prefix"), [("{q}", "bull"), ("q", "{bull}"), ("a{b}c", "bull")])
def test_a_name_or_prefix_with_a_tag_gets_no_second_one(name: str, prefix: str) -> None:
    assert QueueKeys(name, prefix, hash_tag=True).base == f"{prefix}:{name}:"


def test_empty_braces_that_would_switch_the_tag_off_are_refused() -> None:
    for name, prefix, culprit in (("q", "{}bull", "prefix"), ("}q", "bull", "queue")):
        with pytest.raises(InvalidOption, match="switches hash tags off") as refused:
            QueueKeys(name, prefix, hash_tag=True)
        assert refused.value.field == culprit
        assert QueueKeys(name, prefix).other_layout() is None


def test_the_other_layout_of_a_queue_is_known() -> None:
    other = QueueKeys("q").other_layout()
    assert other is not None
    assert other.base == "bull:{q}:"
    back = other.other_layout()
    assert back is not None
    assert back.base == "bull:q:"
    assert QueueKeys("{q}").other_layout() is None
    assert QueueKeys("q", "{}").other_layout() is None


@given(
    st.text(st.characters(exclude_characters=":", exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
)
def test_every_key_of_a_tagged_queue_hashes_alike(name: str) -> None:
    assume(not name.startswith("}"))
    keys = QueueKeys(name, hash_tag=True)
    assert {hashed_part(key) for key in (keys.wait, keys.meta, keys.job("a"), keys.lock("b"))} == {
        hashed_part(keys.base)
    }
    assert has_hash_tag(keys.base)


@given(st.text(st.characters(codec="utf-8"), max_size=20))
def test_what_a_cluster_hashes_is_the_tag_or_the_whole_key(key: str) -> None:
    assert hash_tag_of(key) == hashed_part(key)
    assert has_hash_tag(key) == (hash_tag_of(key) != key)


def test_keys_are_values() -> None:
    keys = QueueKeys("emails")
    assert keys == QueueKeys("emails")
    assert pickle.loads(pickle.dumps(keys)) == keys
    with pytest.raises(AttributeError):
        keys.wait = "other"  # type: ignore[misc]


@pytest.mark.parametrize("name", ["", "a:b", "a\x00b", "a\nb", "x" * 256, "\ud800", 7, None])
def test_a_queue_name_that_would_break_something_is_refused_before_any_io(name: object) -> None:
    with pytest.raises(InvalidOption) as refused:
        QueueKeys(name)  # type: ignore[arg-type]
    assert refused.value.field == "queue"


@pytest.mark.parametrize("name", ["emails", "📮", "a b", "x" * 255, "{a", "a}"])
def test_unusual_queue_names_are_kept_as_they_are(name: str) -> None:
    assert QueueKeys(name).base == f"bull:{name}:"


@pytest.mark.parametrize(
    "job_id", ["", "12", "0", "-3", "a:b", "a:b:c:d", "0:1:2", "x" * 256, "a\x00", 5, "\ud800"]
)
def test_a_job_id_that_node_would_refuse_is_refused(job_id: object) -> None:
    with pytest.raises(InvalidOption):
        check_job_id(job_id)


@pytest.mark.parametrize("job_id", [*sorted(RESERVED_IDS), "metrics:completed:data", "toril:a:b", "de:x:y"])
def test_a_job_id_that_is_a_key_of_the_queue_is_refused(job_id: str) -> None:
    with pytest.raises(InvalidOption, match="reserved"):
        check_job_id(job_id)


@pytest.mark.parametrize(
    "job_id", ["order-17", "007", "1e3", "🚀", "repeat:abc:1700000000000", "a:b:c", "x" * 255]
)
def test_job_ids_that_node_accepts_are_accepted(job_id: str) -> None:
    assert check_job_id(job_id) == job_id


def test_ids_of_the_counter_are_integers() -> None:
    assert check_job_id("12", allow_integer=True) == "12"


def test_every_key_of_the_queue_is_a_reserved_id() -> None:
    keys = QueueKeys("q")
    values = (getattr(keys, name) for name in QueueKeys.__slots__)
    suffixes = {value.removeprefix(keys.base) for value in values if str(value).startswith(keys.base)} - {""}
    assert suffixes <= RESERVED_IDS
    assert len(suffixes) == 18


def test_a_text_that_is_too_long_says_how_long() -> None:
    with pytest.raises(InvalidOption, match="has 300 characters; at most 255"):
        check_text("name", "x" * 300)


def test_a_worker_announces_itself_as_nodes_workers_do() -> None:
    keys = QueueKeys("emails")
    encoded = base64.b64encode(b"emails").decode()
    assert client_name(keys, "worker") == f"bull:{encoded}"
    assert client_name(keys, "worker", "host-1-abc") == f"bull:{encoded}:w:host-1-abc"
    assert client_name(keys, "events") == f"bull:{encoded}:qe"


def test_the_announced_name_has_the_braces_of_the_queue() -> None:
    keys = QueueKeys("emails", hash_tag=True)
    assert base64.b64decode(client_name(keys, "worker").removeprefix("bull:")) == b"{emails}"


def test_the_announced_name_holds_only_what_redis_allows() -> None:
    assert client_name(QueueKeys("q"), "worker", "my host é").endswith(":w:my_host__")


def test_list_queues_are_named_as_the_record_says() -> None:
    keys = ListKeys("jobs.generic", prefix="msaas", env="prod")
    assert keys.queue == "msaas:prod:queue:jobs.generic"
    assert keys.scheduled == "msaas:prod:queue:jobs.generic:scheduled"
    assert keys.lock("7") == "msaas:prod:queue:jobs.generic:lock:7"
    assert keys.dlq == "msaas:prod:queue:jobs.generic:dlq"
    assert keys.processing("h:1:0") == "msaas:prod:queue:jobs.generic:processing:h:1:0"
    assert keys.toril("x") == "msaas:prod:queue:jobs.generic:toril:x"


def test_stream_queues_are_named_as_the_record_says() -> None:
    keys = StreamKeys("jobs.browser", prefix="msaas", env="prod")
    assert keys.stream == "msaas:prod:stream:jobs.browser"
    assert keys.dlq == "msaas:prod:stream:jobs.browser:dlq"
    assert keys.scheduled == "msaas:prod:stream:jobs.browser:scheduled"
    assert keys.consumer_group == "browser-workers"
    assert keys.lock("7") == "msaas:prod:stream:jobs.browser:lock:7"
    assert keys.toril("x") == "msaas:prod:stream:jobs.browser:toril:x"
    assert StreamKeys("plain").consumer_group == "plain-workers"
    assert StreamKeys("jobs.browser", consumer_group="mine").consumer_group == "mine"


def test_list_and_stream_keys_share_a_slot_on_request() -> None:
    keys = ListKeys("jobs.generic", hash_tag=True)
    assert keys.queue == "msaas:prod:queue:{jobs.generic}"
    assert {hashed_part(key) for key in (keys.queue, keys.scheduled, keys.lock("1"), keys.dlq)} == {
        "jobs.generic"
    }
    assert StreamKeys("jobs", prefix="{m}", hash_tag=True).stream == "{m}:prod:stream:jobs"


@pytest.mark.parametrize(("purpose", "env"), [("a:b", "prod"), ("jobs", "a:b"), ("", "prod"), ("jobs", "")])
def test_purpose_and_environment_are_one_part_of_the_key_each(purpose: str, env: str) -> None:
    with pytest.raises(InvalidOption):
        ListKeys(purpose, env=env)


def test_a_consumer_says_host_process_and_number() -> None:
    assert consumer_name("node-1", 42, 3) == "node-1:42:3"


@pytest.mark.parametrize(("purpose", "prefix", "culprit"), [("}q", "m", "queue"), ("q", "{}", "prefix")])
def test_list_and_stream_keys_that_could_not_share_a_slot_are_refused(
    purpose: str, prefix: str, culprit: str
) -> None:
    with pytest.raises(InvalidOption, match="switches hash tags off") as refused:
        StreamKeys(purpose, prefix=prefix, hash_tag=True)
    assert refused.value.field == culprit
