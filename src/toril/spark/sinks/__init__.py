"""Writers: rows of a DataFrame as jobs, each once; or operations on jobs that a query selected."""
