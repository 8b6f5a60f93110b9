"""The scripts, without I/O: each function builds a `Command`, which says what to send and how to read the reply.

Nothing in this room opens a connection. `toril.store` runs commands: singly, pipelined, from asyncio or from threads.
"""
