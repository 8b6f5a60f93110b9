"""`toril dashboard`: the web page about queues."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os

import typer

from toril.cli._dashboard_options import DashboardCliOptions
from toril.cli._option_groups import with_option_groups
from toril.cli._options import AsJson, KeyOptions, QueuesOption, queue_names
from toril.cli._output import emit_line, print_line
from toril.errors import InvalidOption
from toril.protocol.extras import needed


def add_to(app: typer.Typer) -> None:
    app.command("dashboard")(with_option_groups(dashboard))


def dashboard(
    *,
    given: DashboardCliOptions,
    queues: QueuesOption = None,
    keys: KeyOptions,
    as_json: AsJson = False,
) -> None:
    """Serve a web page about queues, jobs, failures and workers until Ctrl-C."""
    with needed("dashboard"):
        from toril.dashboard import DashboardOptions, ServerOptions
        from toril.dashboard.serve import serve

    url, more = keys.target().redis, [_named(one) for one in given.server or ()]
    server = functools.partial(ServerOptions, prefix=keys.prefix, env=keys.env)
    first = server(redis=url, name="default" if more else "", queues=queue_names(queues))
    options = DashboardOptions(
        servers=[first, *(server(redis=url, name=name) for name, url in more)],
        allow_writes=given.allow_writes,
        role=given.role,
        allowed_hosts=given.allowed_host or (),
        token=_secret("token-env", given.token_env),
        basic=_pair(_secret("basic-env", given.basic_env)),
        proxy_user_header=given.proxy_user_header,
        lake=given.lake,
        trace_url=given.trace_url,
        live_seconds=given.live_seconds,
    )
    started = functools.partial(_print_started, allow_writes=given.allow_writes, as_json=as_json)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(options, host=given.host, port=given.port, root_path=given.root_path, on_start=started)
        )


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
