"""Addresses of servers, from URLs and redis-py clients. An `Address` can be shown without its secrets.

    redis://[[user]:password@]host[:port][/db]      rediss:// the same over TLS, certificates verified
    unix://[[user]:password@]/path/to.sock[?db=n]
    redis+sentinel://[[user]:password@]host:port,host:port/service[/db][?sentinel_password=…]
    redis+cluster://[[user]:password@]host:port,host:port      rediss+… the same over TLS
    embedded:  embedded:/folder                     the server that toril starts

Guarantee: neither `repr` nor `str` of an address, nor any error raised here, contains a password.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from toril.errors import InvalidOption
from toril.transport.default_server import EMBEDDED, default_url, named_url

Kind = Literal["single", "sentinel", "cluster"]
Node = tuple[str, int]
Settings = dict[str, Any]  # keyword arguments of redis-py connections

_SCHEMES = "redis://, rediss://, unix://, redis+sentinel://, redis+cluster:// (rediss+… for TLS), embedded:"
_REMEDY = f"use one of {_SCHEMES}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One server, one cluster, or one service of sentinels, with its login."""

    kind: Kind = "single"
    nodes: tuple[Node, ...] = ()  # the server, the sentinels, or the cluster's seeds
    path: str | None = None  # a unix socket in place of a node
    tls: bool = False
    service: str | None = None
    embedded: str | None = None  # the data folder of the embedded server
    login: Mapping[str, Any] = field(default_factory=dict, repr=False)  # db, username, password, ssl_*…
    sentinel_login: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the same for the sentinels

    @property
    def label(self) -> str:
        """The address without its secrets."""
        if self.embedded is not None:
            return f"{EMBEDDED}{self.embedded}"
        where = self.path or ",".join(f"{host}:{port}" for host, port in self.nodes)
        scheme = "unix" if self.path else f"redis{'s' if self.tls else ''}"
        suffix = "" if self.kind == "single" else f"+{self.kind}"
        service = f"/{self.service}" if self.service else ""
        return f"{scheme}{suffix}://{where}{service}{self._database}"

    @property
    def _database(self) -> str:
        number = self.login.get("db")
        return (f"?db={number}" if self.path else f"/{number}") if number else ""

    def __str__(self) -> str:
        return self.label

    @property
    def is_cluster(self) -> bool:
        return self.kind == "cluster"


def parse_address(redis: object = None, environ: Mapping[str, str] = os.environ) -> Address:
    """Reads `redis=`: a URL, a redis-py client (to use its settings), an `Address`, or None for the default server."""
    if isinstance(redis, Address):
        return redis
    if redis is None:
        redis = named_url(environ=environ) or default_url()
    if isinstance(redis, str):
        return _from_url(redis)
    if hasattr(redis, "connection_pool") or hasattr(redis, "nodes_manager"):
        return _from_client(redis)
    raise InvalidOption("redis", f"cannot be a {type(redis).__name__}", "give a URL or a redis-py client")


def whole_url(url: str) -> str:
    """Checks a URL and returns it with the absolute path of an embedded server's folder, for other processes."""
    address = parse_address(url)
    return url if address.embedded is None else f"{EMBEDDED}{address.embedded}"


def _from_url(url: str) -> Address:
    if url.startswith(EMBEDDED):
        return Address(embedded=_folder(url))
    parts = _split(url)
    scheme, _, kind = parts.scheme.partition("+")
    if scheme == "unix" and not kind:
        return _unix(parts.path, parts.username, parts.password, parts.query)
    if scheme not in ("redis", "rediss") or kind not in ("", "sentinel", "cluster"):
        # Nothing else of it is repeated: in a malformed URL the password may be anywhere.
        if "://" not in url:
            raise InvalidOption("redis", "has no scheme", "write redis:// before the host, or embedded:")
        raise InvalidOption("redis", f"begins with {parts.scheme}://, an unknown scheme", _REMEDY)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    login = {**_credentials(userinfo), **_parameters(parts.query)}
    nodes = _nodes(hosts, 26379 if kind == "sentinel" else 6379)
    service, path = None, parts.path.strip("/")
    if kind == "sentinel":
        service, _, path = path.partition("/")
        if not service:
            raise InvalidOption("redis", "names no sentinel service", "redis+sentinel://host:26379/mymaster")
    if path:
        login["db"] = _number(path, "database")
    if kind == "cluster" and login.get("db"):
        raise InvalidOption("redis", "names a database, but a cluster has only 0", "leave it out")
    return Address(
        kind=kind or "single",  # type: ignore[arg-type]  # checked above
        nodes=nodes,
        tls=scheme == "rediss",
        service=service,
        **_logins(login),
    )


def _folder(url: str) -> str:
    """Returns the absolute path, so that a later change of directory does not change the folder."""
    from toril.server.folder import Folder  # needed for embedded servers only

    try:
        return str(Folder.at(url).root)
    except (RuntimeError, ValueError) as error:  # no such home directory, or no path at all
        raise InvalidOption("redis", f"names no folder: {error}", "embedded:/path/to/folder") from None


def _logins(found: Mapping[str, object]) -> Settings:
    """Splits settings into the login of the server and that of the sentinels; certificates are the same for both."""
    login = {name: value for name, value in found.items() if not name.startswith("sentinel_")}
    sentinel = {name: value for name, value in found.items() if name.startswith("ssl_")}
    for name in ("username", "password"):
        if f"sentinel_{name}" in found:
            sentinel[name] = found[f"sentinel_{name}"]
    return {"login": login, "sentinel_login": sentinel}


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError:  # its message may repeat a part of the URL, which may be the password
        raise InvalidOption("redis", "is not a URL", _REMEDY) from None
    if any("@" in part for part in (parts.path, parts.query, parts.fragment)):
        problem = 'has an "@" after the host: a character of the password ends the host too early'
        raise InvalidOption("redis", problem, "write / as %2F, ? as %3F, # as %23 and @ as %40 in passwords")
    return parts


def _unix(path: str, username: str | None, password: str | None, query: str) -> Address:
    if not path or path == "/":
        raise InvalidOption("redis", "names no socket", "unix:///run/redis.sock")
    login: Settings = _parameters(query)
    if username:
        login["username"] = unquote(username)
    if password:
        login["password"] = unquote(password)
    return Address(path=unquote(path), login=login)


def _credentials(userinfo: str) -> Settings:
    username, colon, password = userinfo.partition(":")
    if userinfo and not colon:
        # redis://secret@host means a password to some and a user to others; redis-py reads a user.
        return {"username": unquote(username)}
    found: Settings = {}
    if username:
        found["username"] = unquote(username)
    if password:
        found["password"] = unquote(password)
    return found


# Parameters of a connection; the policy sets time-outs and retries.
_TEXT_PARAMETERS = frozenset(
    [
        "username",
        "password",
        "sentinel_username",
        "sentinel_password",
        "ssl_ca_certs",
        "ssl_ca_path",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_cert_reqs",
    ]
)
_FLAGS = frozenset({"ssl_check_hostname"})


def _parameters(query: str) -> Settings:
    found: Settings = {}
    for place, (name, value) in enumerate(parse_qsl(query), start=1):
        if name == "db":
            found["db"] = _number(value, "database")
        elif name in _TEXT_PARAMETERS:
            found[name] = value
        elif name in _FLAGS:
            found[name] = value.lower() in ("1", "true", "yes")
        else:
            known = ", ".join(sorted(_TEXT_PARAMETERS | _FLAGS | {"db"}))
            problem = f"has an unknown parameter, number {place} of them"
            raise InvalidOption("redis", problem, f"known are {known}")
    return found


def _nodes(hosts: str, default_port: int) -> tuple[Node, ...]:
    found = []
    for one in (hosts or "localhost").split(","):
        if one.startswith("["):
            host, _, rest = one[1:].partition("]")
            port = rest.removeprefix(":")
        else:
            host, _, port = one.partition(":")
        found.append((host or "localhost", _number(port, "port") if port else default_port))
    return tuple(found)


def _number(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit()) or (what == "port" and not 0 < int(text) < 65536):
        # The text is not repeated: it may be a part of the password.
        raise InvalidOption("redis", f"has no number where the {what}'s belongs", _REMEDY)
    return int(text)


# Settings of a redis-py client that are used: its login and TLS. The policy sets time-outs and retries.
_UNUSED_SETTINGS = frozenset({"ssl_context", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"})
_LOGIN_SETTINGS = frozenset({"db", "username", "password", "credential_provider"})


def _from_client(client: Any) -> Address:
    nodes_manager = getattr(client, "nodes_manager", None)
    if nodes_manager is not None:
        settings = dict(nodes_manager.connection_kwargs)
        seeds = tuple((node.host, int(node.port)) for node in nodes_manager.startup_nodes.values())
        return Address(kind="cluster", nodes=seeds, tls=_is_tls(settings), login=_login_of(settings))
    pool = client.connection_pool
    settings = dict(pool.connection_kwargs)
    sentinel = getattr(pool, "sentinel_manager", None)
    if sentinel is not None:
        seeds = tuple(
            (
                one.connection_pool.connection_kwargs["host"],
                int(one.connection_pool.connection_kwargs["port"]),
            )
            for one in sentinel.sentinels
        )
        return Address(
            kind="sentinel",
            nodes=seeds,
            service=pool.service_name,
            tls=_is_tls(settings) or "SSL" in pool.connection_class.__name__,
            login=_login_of(settings),
            sentinel_login=_login_of(sentinel.sentinels[0].connection_pool.connection_kwargs),
        )
    tls = _is_tls(settings) or "SSL" in pool.connection_class.__name__
    if settings.get("path"):
        return Address(path=settings["path"], login=_login_of(settings))
    node = (settings.get("host") or "localhost", int(settings.get("port") or 6379))
    return Address(nodes=(node,), tls=tls, login=_login_of(settings))


def _is_tls(settings: Mapping[str, object]) -> bool:
    return bool(settings.get("ssl")) or "SSL" in getattr(settings.get("connection_class"), "__name__", "")


def _login_of(settings: Mapping[str, object]) -> Settings:
    return {
        key: value
        for key, value in settings.items()
        if value is not None
        and (key in _LOGIN_SETTINGS or (key.startswith("ssl_") and key not in _UNUSED_SETTINGS))
    }
