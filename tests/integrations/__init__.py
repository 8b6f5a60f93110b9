"""Tests with the real frameworks and databases."""
