"""The job as applications see it."""
