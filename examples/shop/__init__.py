"""The shop: `python -m examples.shop`."""
