"""Bronze: events, job hashes, log lines, queue entries and worker reports as they were read from Redis."""
