"""`toril dashboard`: the web page about queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os

import typer

from toril.cli import _dashboard_options as cli_options
from toril.cli._options import AsJson, Env, Prefix, QueuesOption, RedisUrl, queue_names
from toril.cli._output import emit_line, print_line
from toril.cli._target import Target
from toril.errors import InvalidOption
from toril.protocol.extras import needed


def add_to(app: typer.Typer) -> None:
    app.command("dashboard")(dashboard)


def dashboard(
    host: cli_options.Host = "127.0.0.1",
    port: cli_options.Port = 8787,
    allow_writes: cli_options.AllowWrites = False,
    role: cli_options.Role = "admin",
    allowed_host: cli_options.AllowedHost = None,
    token_env: cli_options.TokenEnv = None,
    basic_env: cli_options.BasicEnv = None,
    proxy_user_header: cli_options.ProxyUserHeader = None,
    root_path: cli_options.RootPath = "",
    lake: cli_options.Lake = None,
    trace_url: cli_options.TraceUrl = None,
    live_seconds: cli_options.LiveSeconds = 2.0,
    server: cli_options.Server = None,
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
    started = functools.partial(_print_started, allow_writes=allow_writes, as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(options, host=host, port=port, root_path=root_path, on_start=started))


def _print_started(url: str, *, allow_writes: bool, as_json: bool) -> None:
    if as_json:
        emit_line({"url": url})
    else:
        print_line(f"dashboard: {url} ({'changes allowed' if allow_writes else 'read only'}); Ctrl-C ends it")


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
