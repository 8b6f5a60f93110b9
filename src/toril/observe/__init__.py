"""Doctor and exporter."""
