"""What a script's answer to one outcome of a list or stream job means."""

from __future__ import annotations

from toril.contract.errors import ScriptFailed, TorilError, refusal


def verdict(job_id: str, command: str, code: int | bytes) -> TorilError | None:
    """None when the outcome was accepted, now or by an earlier call whose reply was lost."""
    if isinstance(code, bytes):
        return ScriptFailed(f"job {job_id}: {command}: {code.decode(errors='replace')}")
    return None if code >= 0 else refusal(code, job_id=job_id, command=command)
