"""gRPC for every pod: servers with health, channels with deadlines, one codec, one error mapping."""
