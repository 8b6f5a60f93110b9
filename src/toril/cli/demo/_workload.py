"""The jobs of the demo, by queue.

    video-generation  render: progress, priorities, retries, some fail for good; publish: parents of flows
    transcode         on processes; one job kills the process that runs it
    thumbnails        on threads
    emails            groups (tenants), delays, retries, and a schedule

Guarantee: the outcome of every job is determined by its data, so that the counts at the end are known before the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from toril.producer.flow import FlowNode
from toril.protocol.backoff import Backoff
from toril.protocol.options import JobOptions, NewJob

VIDEOS: Final = "video-generation"
TRANSCODE: Final = "transcode"
THUMBNAILS: Final = "thumbnails"
EMAILS: Final = "emails"
QUEUES: Final = (VIDEOS, TRANSCODE, THUMBNAILS, EMAILS)

DIGEST: Final = "digest"
DIGEST_EVERY: Final = 1.0
DIGESTS: Final = 4
# Of ten mails, so many are of each tenant.
TENANTS: Final = {"acme": 6, "globex": 3, "initech": 1}
BUSIEST: Final = "acme"
BUSIEST_LIMIT: Final = 4  # mails of it at the same time

# One in so many: renders whose first attempt fails, renders that fail for good, mails whose first attempt fails, and
# mails that are delayed.
GPU_BUSY, EMPTY_PROMPT, MAIL_BUSY, DELAYED = 6, 11, 8, 7
# Even with `--pace 0` a render lasts as long, so that the worker that is killed has jobs.
SHORTEST_RENDER: Final = 0.3
_BACKOFF: Final = Backoff.fixed(0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The jobs to add, and the counts that they lead to."""

    renders: list[NewJob]
    flows: list[FlowNode]
    transcodes: list[NewJob]
    thumbnails: list[NewJob]
    mails: list[NewJob]

    @property
    def expected(self) -> dict[str, tuple[int, int]]:
        """Completed and failed jobs by queue."""
        children = [child.queue for flow in self.flows for child in flow.children]
        broken = sum(not job.data["prompt"] for job in self.renders)
        poison = sum(job.data["poison"] for job in self.transcodes)
        return {
            VIDEOS: (len(self.renders) - broken + len(self.flows), broken),
            TRANSCODE: (len(self.transcodes) - poison + children.count(TRANSCODE), poison),
            THUMBNAILS: (len(self.thumbnails) + children.count(THUMBNAILS), 0),
            EMAILS: (len(self.mails) + DIGESTS, 0),
        }

    @property
    def totals(self) -> dict[str, int]:
        """Jobs by queue."""
        return {queue: completed + failed for queue, (completed, failed) in self.expected.items()}


def planned_workload(count: int, pace: float) -> Workload:
    """Returns about `count` jobs; `pace` scales the durations of their handlers."""
    flows, renders = max(2, count // 50), max(12, count // 8)
    transcodes, thumbnails = max(2, count // 20), max(4, count // 10)
    mails = max(20, count - renders - transcodes - thumbnails - 4 * flows - DIGESTS)
    return Workload(
        renders=[_render(number, pace) for number in range(1, renders + 1)],
        flows=[_flow(number, pace) for number in range(1, flows + 1)],
        transcodes=[_transcode(number, pace, poison=number == 1) for number in range(1, transcodes + 1)],
        thumbnails=[_thumbnail(number, pace) for number in range(1, thumbnails + 1)],
        mails=[_mail(number, pace) for number in range(1, mails + 1)],
    )


def _render(number: int, pace: float) -> NewJob:
    data = {
        "video": number,
        "prompt": "" if number % EMPTY_PROMPT == 0 else f"a harbour at dawn, take {number}",
        "seconds": max(SHORTEST_RENDER, (0.6 + number % 5 * 0.2) * pace),
        "gpu_busy": number % GPU_BUSY == 0,
    }
    return NewJob(
        "render", data, JobOptions(attempts=3, backoff=_BACKOFF, priority=1 if number % 3 == 0 else 10)
    )


def _flow(number: int, pace: float) -> FlowNode:
    sizes = [_transcode(number, pace, height=height) for height in (480, 1080)]
    children = [FlowNode(one.name, queue=TRANSCODE, data=one.data) for one in sizes]
    picture = _thumbnail(number, pace)
    children.append(FlowNode(picture.name, queue=THUMBNAILS, data=picture.data))
    return FlowNode("publish", queue=VIDEOS, data={"video": number, "seconds": 0.1 * pace}, children=children)


def _transcode(number: int, pace: float, *, height: int = 720, poison: bool = False) -> NewJob:
    data = {"file": f"video-{number}.mov", "height": height, "seconds": 0.3 * pace, "poison": poison}
    return NewJob("transcode", data, JobOptions(attempts=2, backoff=_BACKOFF))


def _thumbnail(number: int, pace: float) -> NewJob:
    return NewJob("thumbnail", {"file": f"video-{number}.mov", "seconds": 0.1 * pace})


def _mail(number: int, pace: float) -> NewJob:
    data = {
        "to": f"reader-{number}@example.org",
        "seconds": (0.05 + number % 4 * 0.05) * pace,
        "busy": number % MAIL_BUSY == 0,
    }
    if number % DELAYED == 0:
        return NewJob("reminder", {**data, "busy": False}, JobOptions(delay=1.0 + number % 3))
    return NewJob("send", data, JobOptions(attempts=3, backoff=_BACKOFF, group=_tenant(number)))


def _tenant(number: int) -> str:
    """Returns the tenant of a mail: the busiest adds all of its mails first in every ten."""
    place = number % sum(TENANTS.values())
    for tenant, share in TENANTS.items():
        if place < share:
            return tenant
        place -= share
    raise AssertionError(number)
