"""Fixtures for users' own tests."""
