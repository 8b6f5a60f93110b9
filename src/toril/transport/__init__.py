"""Addresses, connections and their policy, and the two transports that run commands. The only user of
redis-py, which it imports for blocking connections, TLS and sentinels only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from toril.lazy_names import lazy_names
from toril.transport._async import AsyncTransport
from toril.transport._reader import Reader
from toril.transport.address import Address, parse_address, whole_url
from toril.transport.policy import ConnectionPolicy

if TYPE_CHECKING:
    from toril.transport._blocking import BlockingTransport

__all__ = [
    "Address",
    "AsyncTransport",
    "BlockingTransport",
    "ConnectionPolicy",
    "Reader",
    "parse_address",
    "whole_url",
]

__getattr__ = lazy_names(__name__, {"BlockingTransport": "toril.transport._blocking"})
