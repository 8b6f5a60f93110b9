"""Typed, resumable, gap-aware events of a queue."""
