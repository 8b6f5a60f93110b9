"""The options of `toril exporter` with their help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterOptions:
    """A group of options (see `_option_groups`)."""

    host: Annotated[str, typer.Option("--host", help="Address to listen on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 9538
    search_every: Annotated[
        float, typer.Option("--search-every", min=1, help="Seconds between searches for new queues.")
    ] = 60.0
    max_queues: Annotated[
        int, typer.Option("--max-queues", min=1, help="Maximum number of queues to export.")
    ] = 1_000
    lake: Annotated[
        str | None,
        typer.Option("--lake", metavar="DIR", help="Tables whose lag behind the queues is served, too."),
    ] = None
    once: Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")] = False
    show: Annotated[
        Literal["grafana", "alerts"] | None,
        typer.Option("--print", help="Print a Grafana dashboard or the alert rules of Prometheus, and exit."),
    ] = None
