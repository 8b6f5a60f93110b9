"""Readers: what Redis holds, as Arrow columns. Stateless: offsets come from Redis, every read has its connection."""
