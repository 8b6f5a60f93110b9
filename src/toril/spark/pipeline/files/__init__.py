"""Files of the tables: written, listed, committed, checked and maintained."""
