"""toril's tests: sentences about the product, told on real servers."""
