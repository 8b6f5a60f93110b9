"""Engines compute the rows of steps. A step says what is computed, by SQL and by functions over Arrow batches."""
