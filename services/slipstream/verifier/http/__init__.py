"""The scorer over HTTP, for users who score offline or from another language; FastAPI is imported here."""
