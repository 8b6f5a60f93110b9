"""Writers: rows of a DataFrame as jobs, each once; or acts on jobs that a query selected."""
