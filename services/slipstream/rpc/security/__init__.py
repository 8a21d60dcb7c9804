"""Security of gRPC: mutual TLS, authorization by role, and plaintext on loopback only."""
