"""The pipeline: ingest, refine, reconcile, maintain; supervised or once.

Guarantee: every step commits with the position it reached, so that each can be killed at any moment and run again.
Importing this imports neither pyspark nor pyarrow: a run that finds nothing new needs none of them.
"""

from __future__ import annotations

from toril.protocol.extras import require

require("spark", "pyarrow", "deltalake")

from toril.spark.pipeline.options import PipelineOptions, Summary
from toril.spark.pipeline.pipeline import Pipeline

__all__ = ["Pipeline", "PipelineOptions", "Summary"]
