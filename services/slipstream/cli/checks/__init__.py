"""What `slipstream validate` looks at beyond the configuration itself."""
