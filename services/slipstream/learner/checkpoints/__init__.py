"""What a learner goes on from: its durable state."""
