"""Every error toril raises, in one tree.

    TorilError
    ├── InvalidOption (ValueError)        a value was refused before any I/O: .field .problem .remedy
    │   ├── UnknownOption (TypeError)        there is no option of this name
    │   ├── NotSerializable                  the data has no JSON form
    │   ├── PayloadTooLarge                  data and options exceed the limit
    │   └── PayloadMismatch (PermanentError) the data does not fit the queue's payload model
    ├── TransientError                    worth another attempt: .retry_after
    │   └── JobTimedOut (TimeoutError)       the handler ran longer than it may
    ├── PermanentError                    another attempt would fail as well (alias UnrecoverableError)
    │   ├── MalformedValue                   a stored field does not parse: .field
    │   ├── ResultTooLarge                   the handler returned more than the worker's max_result_size
    │   ├── MissingUser                      the user that the job works for does not exist
    │   ├── UnknownBackoff                   the job names a backoff that this worker does not have: .name
    │   ├── StalledTooOften                  too many workers died with the job in hand
    │   └── JobCancelled                     somebody cancelled the job
    ├── HandlerSignal                     raised by a handler to steer its job; no attempt is counted
    │   ├── RateLimitError                   wait: the far side is busy: .delay
    │   ├── Postpone                         run me later: .delay (alias DelayedError)
    │   ├── Requeue                          back to the queue, now (alias WaitingError)
    │   └── WaitingChildrenError             wait for my children first
    ├── JobFailed                         a job somebody waits for has failed: .job_id .reason .stacktrace
    ├── ScriptRefused                     a script said no: .code .job_id .command
    │   ├── JobNotFound −1 · JobNotInState −3 · ParentNotFound −5
    │   ├── PendingChildren −4 (TransientError)
    │   ├── LockLost −6 (TransientError)     another worker holds the lock
    │   │   └── LockMissing −2               nobody does: it ran out
    │   ├── ParentCannotBeReplaced −7 · JobBelongsToScheduler −8
    │   ├── FailedChildren −9 (PermanentError)
    │   ├── SchedulerIdCollision −10 · SchedulerSlotsBusy −11
    │   ├── ParentDeduplicated: .stand_in · ChildrenDeduplicated   a flow was not added
    │   └── JobLocked · QueueNotPaused · QueueHasActiveJobs
    ├── RedisError                        Redis answered with an error, or not at all
    │   ├── RedisUnavailable (TransientError)   connection lost, LOADING, READONLY, CLUSTERDOWN, …
    │   │   └── ReplyLost                       the command was sent; it may or may not have run
    │   ├── RedisOutOfMemory (TransientError)   maxmemory is reached
    │   ├── CrossSlot (PermanentError)          keys of one command live on different nodes
    │   ├── AccessDenied (PermanentError)       wrong password, or the ACL forbids the command
    │   ├── NoSuchDatabase (PermanentError)     the server has no database of this number
    │   ├── ScriptFailed                        a script raised an error
    │   ├── ScriptsCorrupt (PermanentError)     the packaged scripts differ from their manifest
    │   └── UnsafeMix (PermanentError)          another library's version on this queue could destroy jobs
    ├── EmbeddedServerFailed              the embedded server did not start or died
    ├── ExtraMissing (ModuleNotFoundError)   an extra of toril is not installed: .extra .module
    └── Closed                            the object was used after it was closed

    UserWarning
    └── OptionWarning                     a value is allowed but probably not meant

Guarantee: every error pickles with all its fields (handlers run in processes), and no message of a store
error holds a password.
"""

from __future__ import annotations

from toril.errors._base import (
    Closed,
    DelayedError,
    EmbeddedServerFailed,
    ExtraMissing,
    HandlerSignal,
    InvalidOption,
    JobCancelled,
    JobFailed,
    JobTimedOut,
    MalformedValue,
    MissingUser,
    NotSerializable,
    OptionWarning,
    PayloadMismatch,
    PayloadTooLarge,
    PermanentError,
    Postpone,
    RateLimitError,
    Requeue,
    ResultTooLarge,
    StalledTooOften,
    TorilError,
    TransientError,
    UnknownBackoff,
    UnknownOption,
    UnrecoverableError,
    WaitingChildrenError,
    WaitingError,
)
from toril.errors._redis import (
    AccessDenied,
    CrossSlot,
    NoSuchDatabase,
    RedisError,
    RedisOutOfMemory,
    RedisUnavailable,
    ReplyLost,
    ScriptFailed,
    ScriptsCorrupt,
    UnsafeMix,
    redact,
)
from toril.errors._refusals import (
    ChildrenDeduplicated,
    FailedChildren,
    JobBelongsToScheduler,
    JobLocked,
    JobNotFound,
    JobNotInState,
    LockLost,
    LockMissing,
    ParentCannotBeReplaced,
    ParentDeduplicated,
    ParentNotFound,
    PendingChildren,
    QueueHasActiveJobs,
    QueueNotPaused,
    SchedulerIdCollision,
    SchedulerSlotsBusy,
    ScriptRefused,
    obliterate_refusal,
    refusal,
)

__all__ = [
    "AccessDenied",
    "ChildrenDeduplicated",
    "Closed",
    "CrossSlot",
    "DelayedError",
    "EmbeddedServerFailed",
    "ExtraMissing",
    "FailedChildren",
    "HandlerSignal",
    "InvalidOption",
    "JobBelongsToScheduler",
    "JobCancelled",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "JobNotInState",
    "JobTimedOut",
    "LockLost",
    "LockMissing",
    "MalformedValue",
    "MissingUser",
    "NoSuchDatabase",
    "NotSerializable",
    "OptionWarning",
    "ParentCannotBeReplaced",
    "ParentDeduplicated",
    "ParentNotFound",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PendingChildren",
    "PermanentError",
    "Postpone",
    "QueueHasActiveJobs",
    "QueueNotPaused",
    "RateLimitError",
    "RedisError",
    "RedisOutOfMemory",
    "RedisUnavailable",
    "ReplyLost",
    "Requeue",
    "ResultTooLarge",
    "SchedulerIdCollision",
    "SchedulerSlotsBusy",
    "ScriptFailed",
    "ScriptRefused",
    "ScriptsCorrupt",
    "StalledTooOften",
    "TorilError",
    "TransientError",
    "UnknownBackoff",
    "UnknownOption",
    "UnrecoverableError",
    "UnsafeMix",
    "WaitingChildrenError",
    "WaitingError",
    "obliterate_refusal",
    "redact",
    "refusal",
]

for _name in __all__:
    # One address for all of them, in tracebacks and pickles as well: which file holds a class is nobody's business.
    globals()[_name].__module__ = __name__
