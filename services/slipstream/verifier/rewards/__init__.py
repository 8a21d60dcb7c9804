"""The rewards, one file each, and the table that makes them (`table.py`)."""
