"""The rollout pod: an inference server that samples for actors, with weights from the learner."""
