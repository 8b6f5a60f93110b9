"""The options of `toril dashboard` with their help."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

Host = Annotated[
    str, typer.Option("--host", help="Address to listen on; other than loopback needs authentication.")
]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")]
AllowWrites = Annotated[
    bool, typer.Option("--allow-writes", help="Allow changes: retry, remove, pause and the like.")
]
Role = Annotated[Literal["viewer", "operator", "admin"], typer.Option("--role", help="What people may do.")]
AllowedHost = Annotated[
    list[str] | None, typer.Option("--allowed-host", help="A Host name besides loopback; repeatable.")
]
TokenEnv = Annotated[
    str | None,
    typer.Option("--token-env", metavar="NAME", help="Environment variable with the token to sign in."),
]
BasicEnv = Annotated[
    str | None,
    typer.Option("--basic-env", metavar="NAME", help="Environment variable with USER:PASSWORD."),
]
ProxyUserHeader = Annotated[
    str | None,
    typer.Option("--proxy-user-header", help="Header with the user's name that only your proxy sets."),
]
RootPath = Annotated[
    str, typer.Option("--root-path", help="The path under which a reverse proxy offers the dashboard.")
]
Lake = Annotated[
    str | None, typer.Option("--lake", help="The lake of the pipeline, for history and removed jobs.")
]
TraceUrl = Annotated[str | None, typer.Option("--trace-url", help="Link to a trace, with {trace_id} in it.")]
LiveSeconds = Annotated[
    float, typer.Option("--live-seconds", min=0.1, help="Seconds between updates of open pages.")
]
Server = Annotated[
    list[str] | None,
    typer.Option("--server", metavar="NAME=URL", help="One more server with a name; repeatable."),
]
