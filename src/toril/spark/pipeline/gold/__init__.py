"""Gold: figures, workers and alerts, computed from silver and from worker reports."""
