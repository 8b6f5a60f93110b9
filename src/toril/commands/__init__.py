"""The scripts, without I/O: each function builds a `Command`, which says what to send and how to read the reply.

Nothing here opens a connection. `toril.transport` runs commands: singly, pipelined, from asyncio or from threads.
"""
