"""Silver: attempts, jobs and gaps, computed from bronze."""
