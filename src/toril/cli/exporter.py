"""`toril exporter`: Prometheus metrics of all queues."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import typer

from toril.cli._exporter_options import ExporterOptions
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, KeyOptions, QueuesOption, queue_names
from toril.cli._output import emit, print_line, print_server
from toril.observe.grafana_files import dashboard_text, rules_text


def add_to(app: typer.Typer) -> None:
    app.command("exporter")(with_option_groups(exporter))


def exporter(
    *,
    options: ExporterOptions,
    queues: QueuesOption = None,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Serve Prometheus metrics of all queues under /metrics until Ctrl-C."""
    if options.show is not None:
        print(dashboard_text() if options.show == "grafana" else rules_text(), end="")
        return
    from toril.observe.exporter import Exporter, serve

    target = keys.target()

    async def run() -> bool:
        made = Exporter(
            target.redis,
            queues=queue_names(queues),
            prefix=keys.prefix,
            env=keys.env,
            search_every=options.search_every,
            max_queues=options.max_queues,
            lake=options.lake,
        )
        if options.once:
            async with made:
                return await _print_once(made, as_json=as_json)
        await serve(made, host=options.host, port=options.port, on_start=_started)
        return True

    def _started(url: str) -> None:
        if as_json:
            emit({"url": f"{url}/metrics"})
        else:
            print_line(f"serving {url}/metrics; Ctrl-C ends it")

    with contextlib.suppress(KeyboardInterrupt):
        if not asyncio.run(run()):
            raise typer.Exit(1)


async def _print_once(exporter: Any, *, as_json: bool) -> bool:
    """Prints the metrics in the format of Prometheus or as JSON; returns whether the server answered."""
    from toril.observe.exporter import encode_metrics

    families = await exporter.families()
    if as_json:
        emit(
            [
                {"name": one.name, "labels": one.labels, "value": one.value}
                for family in families
                for one in family.samples
            ]
        )
    else:
        print_server()
        print(encode_metrics(families).decode(), end="")
    (up,) = (family.samples[0].value for family in families if family.name == "bullmq_exporter_up")
    return bool(up)
