"""gRPC for every room: servers with health, channels with deadlines, one codec, one error mapping."""
