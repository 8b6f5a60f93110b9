"""Addresses, connections and their policy, and the two transports that run commands. The only user of redis-py."""

from __future__ import annotations

from toril.transport._async import AsyncTransport
from toril.transport._blocking import BlockingTransport
from toril.transport._reader import Reader
from toril.transport.address import Address, parse_address, whole_url
from toril.transport.policy import ConnectionPolicy

__all__ = [
    "Address",
    "AsyncTransport",
    "BlockingTransport",
    "ConnectionPolicy",
    "Reader",
    "parse_address",
    "whole_url",
]
