"""The scorer over HTTP, for users who score offline or from another language; only here is FastAPI imported."""
