"""The name under which Spark discovers toril's data source."""
