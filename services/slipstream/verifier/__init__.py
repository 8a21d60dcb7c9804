"""The verifier pod: reward functions behind one gRPC method."""
