"""The toril command."""
