"""Who may speak to whom, and in what: mutual TLS, roles, and plaintext on loopback only."""
