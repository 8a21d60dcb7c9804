"""`slipstream score`: the verifier's scorer, in process, on a file of a user's own."""
