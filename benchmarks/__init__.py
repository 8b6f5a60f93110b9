"""Benchmarks: toril beside its rivals, on one server, in one run. `python -m benchmarks --help` says how."""
