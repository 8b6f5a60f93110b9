"""The optional decorator layer."""
