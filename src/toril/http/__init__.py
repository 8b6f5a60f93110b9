"""A small web server for probes and metrics: standard library only."""

from __future__ import annotations

from toril.http.server import HttpLimits, HttpServer, Response, Route

__all__ = ["HttpLimits", "HttpServer", "Response", "Route"]
