"""What fixtures of this folder hand out, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.spark.factory import Factory
from toril.spark.pipeline import Pipeline

Factories = Callable[..., Factory]
Pipelines = Callable[..., Pipeline]

__all__ = ["Factories", "Pipelines"]
