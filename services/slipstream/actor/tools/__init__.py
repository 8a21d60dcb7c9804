"""Tools that the policy calls in an episode."""
