"""The options of `toril exporter` with their help."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Host = Annotated[str, typer.Option("--host", help="Address to listen on.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")]
SearchEvery = Annotated[
    float, typer.Option("--search-every", min=1, help="Seconds between searches for new queues.")
]
MaxQueues = Annotated[int, typer.Option("--max-queues", min=1, help="Maximum number of queues to export.")]
Lake = Annotated[
    str | None,
    typer.Option("--lake", metavar="DIR", help="Tables whose lag behind the queues is served, too."),
]
Once = Annotated[bool, typer.Option("--once", help="Print the metrics once and exit.")]
Show = Annotated[
    Literal["grafana", "alerts"] | None,
    typer.Option("--print", help="Print a Grafana dashboard or the alert rules of Prometheus, and exit."),
]
