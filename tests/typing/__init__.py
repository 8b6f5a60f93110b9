"""Programs that only the type checker runs: they pin what callers' editors see."""
