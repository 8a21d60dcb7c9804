"""The rewards, one file for each subject, and the table that makes them (`table.py`)."""
