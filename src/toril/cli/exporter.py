"""`toril exporter`: Prometheus metrics of all queues."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import typer

from toril.cli import _exporter_options as cli_options
from toril.cli._options import AsJson, Env, Prefix, QueuesOption, RedisUrl, queue_names
from toril.cli._output import emit, print_line, print_server
from toril.cli._target import Target
from toril.observe.grafana_files import dashboard_text, rules_text


def add_to(app: typer.Typer) -> None:
    app.command("exporter")(exporter)


def exporter(
    host: cli_options.Host = "127.0.0.1",
    port: cli_options.Port = 9538,
    queues: QueuesOption = None,
    search_every: cli_options.SearchEvery = 60.0,
    max_queues: cli_options.MaxQueues = 1_000,
    lake: cli_options.Lake = None,
    once: cli_options.Once = False,
    show: cli_options.Show = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Serve Prometheus metrics of all queues under /metrics until Ctrl-C."""
    if show is not None:
        print(dashboard_text() if show == "grafana" else rules_text(), end="")
        return
    from toril.observe.exporter import Exporter, serve

    target = Target.of(redis, prefix, env)

    async def run() -> bool:
        made = Exporter(
            target.redis,
            queues=queue_names(queues),
            prefix=prefix,
            env=env,
            search_every=search_every,
            max_queues=max_queues,
            lake=lake,
        )
        if once:
            async with made:
                return await _print_once(made, as_json=as_json)
        await serve(made, host=host, port=port, on_start=_started)
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
