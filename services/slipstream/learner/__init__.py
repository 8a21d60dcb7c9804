"""The learner pod: model, optimizer, policy version, weight publishing, checkpoints."""
