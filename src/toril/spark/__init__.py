"""Spark sources, sinks, transforms and the pipeline."""
