"""`slipstream validate --values`: a run as the pods of a Helm release would read it."""
