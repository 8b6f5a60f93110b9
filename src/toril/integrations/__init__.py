"""Web frameworks: `toril.integrations.fastapi`, `.starlette`, `.litestar`, `.flask` and `.django`; and the outbox.

Guarantee: each module imports its own framework only, and `toril` imports none of them.
"""
