"""`toril doctor`: examines a server and its queues."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from toril.cli._confirm import confirm
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, KeyOptions, QueuesOption, Yes, queue_names
from toril.cli._output import console, emit, print_line, progress_bar, table, warn
from toril.observe.doctor import Diagnosis, Doctor, Finding, Repairs, acl_rules
from toril.protocol.compatibility import BULLMQ_PREFIX, ENVELOPE_PREFIX
from toril.protocol.printable import one_line

MostKeys = Annotated[
    int, typer.Option("--most-keys", min=1, help="Maximum number of keys to examine in each queue.")
]
AclUser = Annotated[
    str | None,
    typer.Option(
        "--acl",
        metavar="USER",
        help="Print the ACL rules of a user with exactly the commands that toril needs.",
    ),
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        help="First repair: put lost jobs back, remove ids without data, add missing runs of schedulers.",
    ),
]

_SIGNS = {"ok": "✓", "note": "i", "warning": "!", "problem": "✗"}
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "red"}


def add_to(app: typer.Typer) -> None:
    app.command("doctor")(with_option_groups(doctor))


def doctor(
    *,
    queues: QueuesOption = None,
    most_keys: MostKeys = 20_000,
    acl: AclUser = None,
    repair: Repair = False,
    yes: Yes = False,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Examine the server and its queues; the exit code is 1 if there is a problem or a warning."""
    if acl is not None:
        _print_acl(acl, keys.prefix, as_json=as_json)
        return
    examination = Doctor(
        keys.target().redis,
        queues=queue_names(queues),
        prefix=keys.prefix,
        env=keys.env,
        most_keys=most_keys,
    )
    repaired = _repair(examination, yes=yes) if repair else None
    with progress_bar("examining"):
        diagnosis = asyncio.run(examination.examine())
    if as_json:
        done = {} if repaired is None else {"repaired": repaired}
        emit(
            {"server": diagnosis.server, "healthy": diagnosis.healthy, "findings": diagnosis.findings, **done}
        )
    else:
        _print_repairs(repaired)
        _print(diagnosis)
    if not diagnosis.healthy:
        raise typer.Exit(1)


def _print_acl(user: str, prefix: str | None, *, as_json: bool) -> None:
    rules = acl_rules(user, prefixes=[prefix] if prefix is not None else [BULLMQ_PREFIX, ENVELOPE_PREFIX])
    if as_json:
        emit({"user": user, "rules": rules})
    else:
        print_line(rules)


def _repair(examination: Doctor, *, yes: bool) -> list[Repairs]:
    confirm("Repair queues: put lost jobs back, and remove ids without jobs from their lists?", yes=yes)
    with progress_bar("repairing"):
        return asyncio.run(examination.repair())


def _print_repairs(repaired: list[Repairs] | None) -> None:
    if repaired is not None and not repaired:
        print_line("nothing to repair")
    for one in repaired or ():
        print_line(
            f"{one.queue}: {len(one.put_back)} jobs put back, {len(one.removed_ids)} ids without data removed, "
            f"{len(one.schedulers)} schedulers have a next run again, {len(one.next_jobs)} jobs added that were left"
        )
        for trouble in one.troubles:
            warn(f"{one.queue}: {trouble}")


def _print(diagnosis: Diagnosis) -> None:
    rows = [(_sign(one), one.check, one.queue or "", _text(one)) for one in diagnosis.findings]
    console().print(table(["", "check", "queue", "finding"], rows))
    count = len(diagnosis.problems())
    print_line(
        f"{diagnosis.server}: "
        + (f"{count} {'thing' if count == 1 else 'things'} to do" if count else "healthy")
    )


def _sign(finding: Finding) -> Text:
    return Text(_SIGNS[finding.level], style=_COLOURS[finding.level])


def _text(finding: Finding) -> Text:
    text = Text(one_line(finding.message))
    if finding.remedy and finding.level != "ok":
        text.append(f"\n→ {one_line(finding.remedy)}", style="bold")
    return text
