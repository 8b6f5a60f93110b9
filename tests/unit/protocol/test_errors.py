"""Errors: one tree, fields that survive pickling, no passwords."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from pathlib import Path

import pytest

from toril import errors
from toril.errors import (
    CrossSlot,
    FailedChildren,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobNotFound,
    JobTimedOut,
    LockLost,
    LockMissing,
    MalformedValue,
    PayloadMismatch,
    PermanentError,
    Postpone,
    QueueHasActiveJobs,
    QueueNotPaused,
    RateLimitError,
    RedisOutOfMemory,
    RedisUnavailable,
    ReplyLost,
    ScriptRefused,
    TorilError,
    TransientError,
    UnknownBackoff,
    UnrecoverableError,
    obliterate_refusal,
    redact,
    refusal,
)
from toril.protocol.classify import ErrorCategory, categorize_error

EXAMPLES = [
    InvalidOption("delay", "is -1 s", "give 0 or more"),
    PayloadMismatch("data.to", "is missing"),
    TransientError("busy", retry_after=3.0),
    PermanentError("no"),
    MalformedValue("opts", "is not an object", job_id="7"),
    UnknownBackoff("lunar"),
    JobTimedOut("7", 1.5),
    JobCancelled("7", "not needed"),
    RateLimitError(2.0),
    Postpone(5.0),
    JobFailed("7", "boom", ["trace"]),
    LockLost("7", hint="breathe", command="moveToFinished"),
    LockMissing("7"),
    FailedChildren("7"),
    ScriptRefused("7", code=-42),
    RedisUnavailable("gone"),
    ReplyLost("gone"),
    RedisOutOfMemory(),
    CrossSlot("CROSSSLOT", hint="other"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_message_and_fields_when_it_is_pickled(error: TorilError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_an_error_class_of_the_user_keeps_its_fields_when_it_is_pickled() -> None:
    error = OutOfStock("A-1", left=0)
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.article, copy.left, str(copy)) == ("A-1", 0, "A-1 is sold out")


class OutOfStock(PermanentError):
    def __init__(self, article: str, *, left: int) -> None:
        super().__init__(f"{article} is sold out")
        self.article = article
        self.left = left


def test_every_error_belongs_to_the_tree_and_says_what_it_means() -> None:
    classes = [
        cls for _, cls in inspect.getmembers(errors, inspect.isclass) if cls.__module__ == errors.__name__
    ]
    raised = [cls for cls in classes if issubclass(cls, Exception) and not issubclass(cls, Warning)]
    assert all(issubclass(cls, TorilError) for cls in raised)
    assert all(cls.__doc__ for cls in raised)
    assert set(_drawn_tree()) >= {cls.__name__ for cls in classes}


def test_the_drawn_tree_shows_the_base_of_every_error() -> None:
    drawn = _drawn_tree()
    assert {name for name, bases in drawn.items() if bases and not _has_bases(name, bases)} == set()


def _has_bases(name: str, bases: list[str]) -> bool:
    found = {base.__name__ for base in getattr(errors, name).__mro__}
    return found.issuperset(bases)


def _drawn_tree() -> dict[str, list[str]]:
    """Class -> the bases that the docstring of `toril.errors` draws: the node above it, and those in parentheses."""
    tree: dict[str, list[str]] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        node = re.match(r" {4}([│ ]*[├└]── )?([A-Z].*)", line)
        if node is None or line.startswith("     "):
            continue
        depth = len(node[1] or "") // 4
        for name, others in re.findall(r"([A-Z]\w+)(?: −\d+)?(?: \((\w+)\))?", re.split(r"  +", node[2])[0]):
            tree[name] = [*path[:depth][-1:], *([others] if others else [])]
            path[depth:] = [name]
    return tree


def test_no_other_package_defines_an_error() -> None:
    known = {name for name in errors.__all__ if inspect.isclass(getattr(errors, name))}
    source = Path(errors.__file__).parents[1]
    assert [found for path in source.rglob("*.py") for found in _error_classes(path, known)] == []


def _error_classes(path: Path, known: set[str]) -> list[str]:
    if path.parent == Path(errors.__file__).parent:
        return []
    classes = [
        node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.ClassDef)
    ]
    return [
        f"{path.name}: {node.name}"
        for node in classes
        if {ast.unparse(base).rpartition(".")[2] for base in node.bases} & known
    ]


def test_an_invalid_option_names_the_field_the_problem_and_the_remedy() -> None:
    error = InvalidOption("delay", "is -1 s", "give 0 or more")
    assert str(error) == "delay: is -1 s; give 0 or more"
    assert (error.field, error.problem, error.remedy) == ("delay", "is -1 s", "give 0 or more")
    assert isinstance(error, ValueError)
    assert str(InvalidOption("delay", "is wrong")) == "delay: is wrong"


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (-1, "JobNotFound"),
        (-2, "LockMissing"),
        (-3, "JobNotInState"),
        (-4, "PendingChildren"),
        (-5, "ParentNotFound"),
        (-6, "LockLost"),
        (-7, "ParentCannotBeReplaced"),
        (-8, "JobBelongsToScheduler"),
        (-9, "FailedChildren"),
        (-10, "SchedulerIdCollision"),
        (-11, "SchedulerSlotsBusy"),
    ],
)
def test_each_negative_answer_of_a_script_has_its_own_error(code: int, name: str) -> None:
    error = refusal(code, "7", "moveToFinished")
    assert type(error).__name__ == name
    assert (error.code, error.job_id, error.command) == (code, "7", "moveToFinished")
    assert "job 7" in str(error).lower()
    assert "moveToFinished" in str(error)


def test_refusals_that_become_the_reason_of_a_failed_job_have_nodes_words_and_our_hint() -> None:
    pending, failed = refusal(-4, "7", "moveToFinished"), refusal(-9, "7", "moveToWaitingChildren")
    assert str(pending) == "Job 7 has pending dependencies. moveToFinished"
    assert (
        str(failed) == "Cannot complete job 7 because it has at least one failed child. moveToWaitingChildren"
    )
    assert "move_to_waiting_children" in "".join(pickle.loads(pickle.dumps(pending)).__notes__)
    assert categorize_error(pending) is ErrorCategory.TRANSIENT
    assert categorize_error(failed) is ErrorCategory.PERMANENT


def test_an_unknown_answer_is_refused_by_its_number() -> None:
    error = refusal(-99, "7")
    assert type(error) is ScriptRefused
    assert error.code == -99
    assert "-99" in str(error)


def test_obliterate_has_answers_of_its_own() -> None:
    assert isinstance(obliterate_refusal(-1), QueueNotPaused)
    assert isinstance(obliterate_refusal(-2), QueueHasActiveJobs)
    assert obliterate_refusal(-77).code == -77


def test_a_missing_lock_is_a_lost_lock() -> None:
    with pytest.raises(LockLost, match="raise lock_duration"):
        raise LockMissing("7")


def test_the_names_that_bullmq_users_know_are_the_same_classes() -> None:
    assert UnrecoverableError is PermanentError
    assert errors.DelayedError is Postpone
    assert errors.WaitingError is errors.Requeue


def test_a_time_out_is_a_builtin_time_out_and_transient() -> None:
    with pytest.raises(TimeoutError, match=r"longer than 1\.5 s"):
        raise JobTimedOut("7", 1.5)
    assert isinstance(JobTimedOut("7", 1.5), TransientError)


def test_a_refusal_without_a_job_speaks_for_itself() -> None:
    assert str(QueueNotPaused(command="obliterate")) == "the queue is not paused (obliterate); pause it first"
    assert str(JobNotFound("x", hint="")) == "job x: does not exist"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("lost redis://user:hunter2@host:6379/0", "lost redis://user:***@host:6379/0"),
        ("rediss://:p/w@d@host", "rediss://:***@host"),
        ("redis://host?password=hunter2&db=1", "redis://host?password=***&db=1"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_passwords_never_show(text: str, shown: str) -> None:
    assert redact(text) == shown
    assert str(RedisUnavailable(text)) == shown


@pytest.mark.timeout(60)  # a search that begins anew at each character would take hours
@pytest.mark.parametrize("text", ["x", "://", "://a:", "a:", "?password", "&token_", "?a=", "@", "x-+."])
def test_long_messages_of_any_kind_are_searched_for_passwords_in_one_go(text: str) -> None:
    long = text * 1_000_000
    assert redact(f"{long} redis://u:secret@h {long}").count("***") >= 1


def test_a_store_error_without_text_explains_itself() -> None:
    assert str(RedisOutOfMemory()).startswith(
        "Redis has reached maxmemory and refuses writes; raise maxmemory"
    )
    assert RedisUnavailable().retry_after is None
