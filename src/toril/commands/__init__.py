"""Calls to the server, without I/O: each function returns a `Command` with what to send and how to decode the reply.

Nothing here opens a connection. `toril.transport` runs commands: singly, pipelined, from asyncio or from threads.
"""
