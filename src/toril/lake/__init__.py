"""Table names, schemas and readers without Spark."""
