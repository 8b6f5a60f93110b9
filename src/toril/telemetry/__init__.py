"""Metrics, traces and logs. The core imports `hooks` only; the other modules are adapters."""
