"""The options of `toril dashboard` with their help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardCliOptions:
    """A group of options (see `_option_groups`)."""

    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other than loopback needs authentication.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8787
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Allow changes: retry, remove, pause and the like.")
    ] = False
    role: Annotated[
        Literal["viewer", "operator", "admin"], typer.Option("--role", help="What people may do.")
    ] = "admin"
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="A Host name besides loopback; repeatable.")
    ] = None
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Environment variable with the token to sign in."),
    ] = None
    basic_env: Annotated[
        str | None,
        typer.Option("--basic-env", metavar="NAME", help="Environment variable with USER:PASSWORD."),
    ] = None
    proxy_user_header: Annotated[
        str | None,
        typer.Option("--proxy-user-header", help="Header with the user's name that only your proxy sets."),
    ] = None
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path under which a reverse proxy offers the dashboard.")
    ] = ""
    lake: Annotated[
        str | None, typer.Option("--lake", help="The lake of the pipeline, for history and removed jobs.")
    ] = None
    trace_url: Annotated[
        str | None, typer.Option("--trace-url", help="Link to a trace, with {trace_id} in it.")
    ] = None
    live_seconds: Annotated[
        float, typer.Option("--live-seconds", min=0.1, help="Seconds between updates of open pages.")
    ] = 2.0
    server: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="NAME=URL", help="One more server with a name; repeatable."),
    ] = None
