"""`toril scripts`: the Lua scripts, checked against their manifest."""

from __future__ import annotations

import typer

from toril.cli._options import AsJson
from toril.cli._output import emit, print_line, show
from toril.commands.library import check_all, own, own_names, upstream


def add_to(app: typer.Typer) -> None:
    app.command("scripts")(scripts)


def scripts(
    as_json: AsJson = False,
    own_too: bool = typer.Option(False, "--own", help="Also list toril's own scripts."),
) -> None:
    """Check BullMQ's scripts against the manifest and list them with their hashes."""
    found = check_all()
    ours = {name: own(name).sha1 for name in own_names()}
    origin = upstream()
    if as_json:
        emit({**origin, "count": len(found), "verified": True, "scripts": found, "own": ours})
        return
    show(["script", "SHA-256"], [(file.removesuffix(".lua"), digest) for file, digest in found.items()])
    if own_too:
        show(["toril's own script", "SHA-1 (its name on the server)"], list(ours.items()))
    package, reference = origin["package"], origin["reference"]
    print_line(
        f"{len(found)} official scripts, each as the manifest says: from {package['name']} {package['version']} "
        f"({package['registry']}), compared with {reference['package']} {reference['version']} "
        f"({reference['registry']}, commit {reference['commit'][:12]})"
    )
    print_line(f"{len(ours)} scripts of toril's own")
