"""Run untrusted programs in short-lived children of a warm fork server, behind several layers of
isolation."""
