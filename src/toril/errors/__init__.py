"""Every error toril raises, in one tree.

    TorilError
    ├── InvalidOption (ValueError)        a value was refused before any I/O: .field .problem .remedy
    │   ├── UnknownOption (TypeError)        there is no option of this name
    │   ├── NotSerializable                  the data has no JSON form
    │   ├── PayloadTooLarge                  data and options exceed the limit
    │   └── PayloadMismatch (PermanentError) the data does not fit the queue's payload model
    ├── TransientError                    worth another attempt: .retry_after
    │   ├── JobTimedOut (TimeoutError)       the handler ran longer than it may
    │   ├── BrowserTimeout (TimeoutError)    playwright_timeout: the page took too long
    │   ├── BrowserCrashed                   browser_crashed: the browser ended while the job ran
    │   ├── PageUnreachable                  net::ERR_…: no connection, no such name, …
    │   └── PageBusy                         http_503, http_429: the server answered with an error that may pass
    ├── PermanentError                    another attempt would fail as well (alias UnrecoverableError)
    │   ├── MalformedValue                   a stored field does not parse: .field
    │   ├── UnreadablePayload                an encoded payload cannot be decoded: .field .problem .remedy
    │   ├── PlainPayload                     a payload is not encrypted and must be: .field
    │   ├── ResultTooLarge                   the handler returned more than the worker's max_result_size
    │   ├── MissingUser                      the user that the job works for does not exist
    │   ├── UnknownBackoff                   the job names a backoff that this worker does not have: .name
    │   ├── JobExpired                       it was fetched after it had expired; its handler did not run
    │   ├── StalledTooOften                  too many workers died while they ran the job
    │   ├── ProcessDied                      the process of the handler ended: .exit_code
    │   ├── JobCancelled                     the job was cancelled while it ran
    │   ├── PageRefused                      http_404, …: the server answered with another error
    │   ├── AddressRefused                   address_refused: the page, or a redirect, leads to a private address
    │   ├── PageIsDownload                   download_refused: the address leads to a file, not to a page
    │   └── PageTooLarge                     page_too_large: more bytes than a page may load
    ├── StoppedByWorker                   the worker stops, and the job goes back to the queue
    ├── HandlerSignal                     raised by a handler to end its attempt; no attempt is counted
    │   ├── RateLimitError                   put the job back and pause fetching: .delay
    │   ├── Postpone                         run the job again later: .delay (alias DelayedError)
    │   │   └── NewerPayload                    the job was added by a newer version of its task: .task .version .known
    │   ├── Requeue                          put the job back now (alias WaitingError)
    │   └── WaitingChildrenError             run the job again when its children have finished
    ├── JobFailed                         a job that was waited for has failed: .job_id .reason .stacktrace
    ├── Detached                          the job is not in a queue on a server: .job_id .why
    ├── ScriptRefused                     a script changed nothing because of its conditions: .code .job_id .command
    │   ├── JobNotFound −1 · JobNotInState −3 · ParentNotFound −5
    │   ├── PendingChildren −4 (TransientError)
    │   ├── LockLost −6 (TransientError)     another worker holds the lock
    │   │   └── LockMissing −2               no worker does: it expired
    │   │       └── LockLapsed                  and the outcome may be sent again
    │   ├── ParentCannotBeReplaced −7 · JobBelongsToScheduler −8
    │   ├── FailedChildren −9 (PermanentError)
    │   ├── SchedulerIdCollision −10 · SchedulerSlotsBusy −11
    │   ├── ParentDeduplicated: .stand_in · ChildrenDeduplicated   a flow was not added
    │   ├── GroupFull (TransientError)       a job was not added: as many of its group wait as may
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
    │   ├── ServerMissing                    no server binary on this machine
    │   ├── FolderUnusable                   the folder cannot hold a server: .folder
    │   │   └── DiskFull                        its disk is full
    │   ├── FolderTooNew                     its data was written by a newer server: .folder
    │   ├── PortTaken                        another program listens there, or the server has another port: .port
    │   ├── ServerNotReady (TimeoutError)    no reply in time: .folder .seconds
    │   └── ServerStartFailed                the server ended instead of starting: .folder .log
    ├── LakeError                         a table of the lake cannot be used
    │   ├── CommitGone                       an old commit is no longer in a table's log: .table .version
    │   ├── LakeTooNew                       the table was written by a newer toril: .table .found .known
    │   ├── TableMissing                     the table does not exist yet: .table
    │   └── TableRolledBack                  a table is older than what was made of it: .table .made
    ├── SparkUnavailable                  Spark cannot start here
    ├── PipelineFailed                    a step of the pipeline ended with an error of Spark
    ├── QueueMissing                      a Spark source reads a queue that does not exist: .queues
    ├── QueueStaysFull                    a Spark sink waited for a full queue: .queue .waiting
    ├── RunChanged                        rows of an earlier run of a Spark sink cannot be recognised: .run
    ├── OutsideSparkTask                  a writer was called outside of a Spark task
    ├── EventsLost                        a Spark source met lost events with on_gap=fail: .queue .lost
    ├── InvalidOutboxRow                  a row of an outbox is no job: .row
    ├── Closed                            the object was used after it was closed
    │   └── Interrupted                      the call was cancelled before it had its result
    └── ExtraMissing (ModuleNotFoundError)   an extra of toril is not installed: .extra .module

    UserWarning
    └── OptionWarning                     a value is allowed but probably not meant

Browser jobs fail with an `error_code`, which their dead letters carry: the word before the colon above.

Guarantee: every error pickles with all its fields (handlers run in processes), and no message of a Redis
error holds a password.
"""

from __future__ import annotations

from toril.errors._base import (
    Closed,
    DelayedError,
    Detached,
    ExtraMissing,
    HandlerSignal,
    Interrupted,
    InvalidOption,
    InvalidOutboxRow,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobTimedOut,
    MalformedValue,
    MissingUser,
    NewerPayload,
    NotSerializable,
    OptionWarning,
    PayloadMismatch,
    PayloadTooLarge,
    PermanentError,
    PlainPayload,
    Postpone,
    ProcessDied,
    RateLimitError,
    Requeue,
    ResultTooLarge,
    StalledTooOften,
    StoppedByWorker,
    TorilError,
    TransientError,
    UnknownBackoff,
    UnknownOption,
    UnreadablePayload,
    UnrecoverableError,
    WaitingChildrenError,
    WaitingError,
)
from toril.errors._browser import (
    AddressRefused,
    BrowserCrashed,
    BrowserTimeout,
    PageBusy,
    PageIsDownload,
    PageRefused,
    PageTooLarge,
    PageUnreachable,
)
from toril.errors._lake import CommitGone, LakeError, LakeTooNew, TableMissing, TableRolledBack
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
    GroupFull,
    JobBelongsToScheduler,
    JobLocked,
    JobNotFound,
    JobNotInState,
    LockLapsed,
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
from toril.errors._server import (
    DiskFull,
    EmbeddedServerFailed,
    FolderTooNew,
    FolderUnusable,
    PortTaken,
    ServerMissing,
    ServerNotReady,
    ServerStartFailed,
)
from toril.errors._spark import (
    EventsLost,
    OutsideSparkTask,
    PipelineFailed,
    QueueMissing,
    QueueStaysFull,
    RunChanged,
    SparkUnavailable,
)

__all__ = [
    "AccessDenied",
    "AddressRefused",
    "BrowserCrashed",
    "BrowserTimeout",
    "ChildrenDeduplicated",
    "Closed",
    "CommitGone",
    "CrossSlot",
    "DelayedError",
    "Detached",
    "DiskFull",
    "EmbeddedServerFailed",
    "EventsLost",
    "ExtraMissing",
    "FailedChildren",
    "FolderTooNew",
    "FolderUnusable",
    "GroupFull",
    "HandlerSignal",
    "Interrupted",
    "InvalidOption",
    "InvalidOutboxRow",
    "JobBelongsToScheduler",
    "JobCancelled",
    "JobExpired",
    "JobFailed",
    "JobLocked",
    "JobNotFound",
    "JobNotInState",
    "JobTimedOut",
    "LakeError",
    "LakeTooNew",
    "LockLapsed",
    "LockLost",
    "LockMissing",
    "MalformedValue",
    "MissingUser",
    "NewerPayload",
    "NoSuchDatabase",
    "NotSerializable",
    "OptionWarning",
    "OutsideSparkTask",
    "PageBusy",
    "PageIsDownload",
    "PageRefused",
    "PageTooLarge",
    "PageUnreachable",
    "ParentCannotBeReplaced",
    "ParentDeduplicated",
    "ParentNotFound",
    "PayloadMismatch",
    "PayloadTooLarge",
    "PendingChildren",
    "PermanentError",
    "PipelineFailed",
    "PlainPayload",
    "PortTaken",
    "Postpone",
    "ProcessDied",
    "QueueHasActiveJobs",
    "QueueMissing",
    "QueueNotPaused",
    "QueueStaysFull",
    "RateLimitError",
    "RedisError",
    "RedisOutOfMemory",
    "RedisUnavailable",
    "ReplyLost",
    "Requeue",
    "ResultTooLarge",
    "RunChanged",
    "SchedulerIdCollision",
    "SchedulerSlotsBusy",
    "ScriptFailed",
    "ScriptRefused",
    "ScriptsCorrupt",
    "ServerMissing",
    "ServerNotReady",
    "ServerStartFailed",
    "SparkUnavailable",
    "StalledTooOften",
    "StoppedByWorker",
    "TableMissing",
    "TableRolledBack",
    "TorilError",
    "TransientError",
    "UnknownBackoff",
    "UnknownOption",
    "UnreadablePayload",
    "UnrecoverableError",
    "UnsafeMix",
    "WaitingChildrenError",
    "WaitingError",
    "obliterate_refusal",
    "redact",
    "refusal",
]

for _name in __all__:
    # Tracebacks and pickles name the public module, so that a class may move between the files of this package.
    globals()[_name].__module__ = __name__
