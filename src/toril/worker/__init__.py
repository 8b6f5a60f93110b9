"""The worker and its services, one role per file."""
