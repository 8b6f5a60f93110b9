"""Jobs processed on Spark's executors: `SparkWorker`, its two engines, the work source and the settle sink."""
