"""`toril dashboard`: the web page about queues."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Annotated, Literal

import typer

from toril.cli._options import AsJson, Env, Prefix, QueuesOption, RedisUrl, queue_names
from toril.cli._output import emit_line, print_line
from toril.cli._target import Target
from toril.errors import InvalidOption
from toril.protocol.extras import needed


def add_to(app: typer.Typer) -> None:
    app.command("dashboard")(dashboard)


def dashboard(
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other than loopback needs authentication.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port to listen on; 0: any free port.")
    ] = 8787,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Allow changes: retry, remove, pause and the like.")
    ] = False,
    role: Annotated[
        Literal["viewer", "operator", "admin"], typer.Option("--role", help="What people may do.")
    ] = "admin",
    allowed_host: Annotated[
        list[str] | None, typer.Option("--allowed-host", help="A Host name besides loopback; repeatable.")
    ] = None,
    token_env: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Environment variable with the token to sign in."),
    ] = None,
    basic_env: Annotated[
        str | None,
        typer.Option("--basic-env", metavar="NAME", help="Environment variable with USER:PASSWORD."),
    ] = None,
    proxy_user_header: Annotated[
        str | None,
        typer.Option("--proxy-user-header", help="Header with the user's name that only your proxy sets."),
    ] = None,
    root_path: Annotated[
        str, typer.Option("--root-path", help="The path under which a reverse proxy offers the dashboard.")
    ] = "",
    lake: Annotated[
        str | None, typer.Option("--lake", help="The lake of the pipeline, for history and removed jobs.")
    ] = None,
    trace_url: Annotated[
        str | None, typer.Option("--trace-url", help="Link to a trace, with {trace_id} in it.")
    ] = None,
    live_seconds: Annotated[
        float, typer.Option("--live-seconds", min=0.1, help="Seconds between updates of open pages.")
    ] = 2.0,
    server: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="NAME=URL", help="One more server with a name; repeatable."),
    ] = None,
    queues: QueuesOption = None,
    redis: RedisUrl = None,
    prefix: Prefix = None,
    env: Env = "prod",
    as_json: AsJson = False,
) -> None:
    """Serve a web page about queues, jobs, failures and workers until Ctrl-C."""
    with needed("dashboard"):
        from toril.dashboard import DashboardOptions, ServerOptions
        from toril.dashboard.serve import serve

    target = Target.of(redis, prefix, env)
    more = [_named(one) for one in server or ()]
    first = ServerOptions(
        redis=target.redis,
        name="default" if more else "",
        queues=queue_names(queues),
        prefix=prefix,
        env=env,
    )
    options = DashboardOptions(
        servers=[first, *(ServerOptions(redis=url, name=name, prefix=prefix, env=env) for name, url in more)],
        allow_writes=allow_writes,
        role=role,
        allowed_hosts=allowed_host or (),
        token=_secret("token-env", token_env),
        basic=_pair(_secret("basic-env", basic_env)),
        proxy_user_header=proxy_user_header,
        lake=lake,
        trace_url=trace_url,
        live_seconds=live_seconds,
    )

    def _started(url: str) -> None:
        if as_json:
            emit_line({"url": url})
        else:
            print_line(
                f"dashboard: {url} ({'changes allowed' if allow_writes else 'read only'}); Ctrl-C ends it"
            )

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options, host=host, port=port, root_path=root_path, on_start=_started))


def _secret(option: str, name: str | None) -> str | None:
    """Returns the value of an environment variable: a secret on the command line could be read by other users."""
    if name is None:
        return None
    value = os.environ.get(name, "")
    if not value:
        raise InvalidOption(option, f"the environment has no {name}", "set it to the secret")
    return value


def _pair(text: str | None) -> tuple[str, str] | None:
    if text is None:
        return None
    user, colon, password = text.partition(":")
    if not colon or not user or not password:
        raise InvalidOption("basic-env", "is not USER:PASSWORD", "write both with a colon between")
    return user, password


def _named(text: str) -> tuple[str, str]:
    name, equals, url = text.partition("=")
    if not equals or not name:
        raise InvalidOption("server", f"{text!r} has no name", "write NAME=URL")
    return name, url
