"""The wire format as pure values: keys, codec, options, records, events, envelopes, outcomes.

Guarantee: nothing in this package performs I/O or imports anything beyond the standard library and msgspec.
Import the module you need (`toril.protocol.keys`, …); this file re-exports nothing, so it costs nothing.
"""
