"""The processes of a pipeline: its Spark session, the Java process, ingest and the steps that run at intervals."""
