"""The model, and the handler that `toril worker --spark` runs on the executors."""

from __future__ import annotations

from functools import cache

import numpy as np
import pyarrow as pa

FEATURES = 8


@cache  # once for each Python process of an executor
def weights() -> np.ndarray:
    return np.linspace(-1, 1, FEATURES)


def score(batch: pa.Table) -> list[float | Exception]:
    """One call for all jobs that wait: rows with the wrong number of features fail alone."""
    rows = batch["data"].combine_chunks().field("features").to_pylist()
    fits = [row is not None and len(row) == FEATURES for row in rows]
    given = np.array([row for row, fit in zip(rows, fits, strict=True) if fit]).reshape(-1, FEATURES)
    scores = iter(np.tanh(given @ weights()).tolist())
    return [next(scores) if fit else ValueError(f"give {FEATURES} features") for fit in fits]
