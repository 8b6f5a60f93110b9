"""FastAPI, Starlette and Django."""
