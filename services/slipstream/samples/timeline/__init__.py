"""What the processes of a run did when: spans of the learner and of the rollouts, and the life of groups."""
