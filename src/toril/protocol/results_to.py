"""Where the results of a worker go: another queue, to which each result is added as a job.

Guarantee: a `ResultsTo` that exists is valid: its options can neither refuse a result nor replace one by another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from toril.errors import InvalidOption
from toril.protocol.keys import check_queue_name, check_text
from toril.protocol.option_names import knows_its_options
from toril.protocol.options import JobOptions

# The field of `opts` with the key of the job whose result is the data of this one. Node passes it on and ignores it.
RESULT_OF: Final = "resultOf"

# Why an option cannot be given to the jobs that results become.
_REFUSED: Final = {
    "job_id": "gives all results one id",
    "deduplication": "drops results",
    "group": "can refuse results: a group may have a maximum size",
    "parent": "is for jobs of a flow",
    "repeat": "is for schedulers",
    "timestamp": "is the time at which the job completed",
    "telemetry_metadata": "is that of the job",
    "size_limit": "can refuse results",
}


@knows_its_options("a field of ResultsTo")
@dataclass(frozen=True, slots=True)
class ResultsTo:
    """The queue that gets the result of each completed job as the data of a new job."""

    queue: str
    name: str | None = field(default=None, kw_only=True)  # of the new jobs; None: that of the completed job
    prefix: str | None = field(default=None, kw_only=True)  # None: that of the worker
    options: JobOptions = field(default_factory=JobOptions, kw_only=True)  # of the new jobs

    def __post_init__(self) -> None:
        check_queue_name(self.queue)
        if self.name is not None:
            check_text("results_to.name", self.name)
        options: object = self.options
        if not isinstance(options, JobOptions):
            raise InvalidOption("results_to.options", f"is a {type(options).__name__}", "give JobOptions(…)")
        for name in self.options.given:
            if name in _REFUSED:
                raise InvalidOption(f"results_to.options.{name}", _REFUSED[name], "leave it out")

    @classmethod
    def of(cls, given: ResultsTo | str) -> ResultsTo:
        """The name of a queue alone is short for `ResultsTo(queue)`."""
        return given if isinstance(given, ResultsTo) else cls(given)
