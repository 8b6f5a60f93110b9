"""Figures of queues for people and monitoring: doctor, exporter, health checks."""
