"""The browser worker's tasks."""
