"""The name under which Spark discovers toril's data source: `DefaultSource`, and nothing else."""

from toril.spark.datasource import TorilDataSource as DefaultSource

__all__ = ["DefaultSource"]
