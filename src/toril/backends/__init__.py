"""The three kinds of queues behind one protocol, and their dead letters."""
