"""The blocking face of the public classes."""
