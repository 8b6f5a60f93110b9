"""The only room that speaks Redis: addresses, connections and their policy, and the two drivers that run commands."""

from __future__ import annotations

from toril.store._async import AsyncStore
from toril.store._blocking import BlockingStore
from toril.store._reader import Reader
from toril.store.address import Address, parse_address, whole_url
from toril.store.policy import ConnectionPolicy

__all__ = [
    "Address",
    "AsyncStore",
    "BlockingStore",
    "ConnectionPolicy",
    "Reader",
    "parse_address",
    "whole_url",
]
