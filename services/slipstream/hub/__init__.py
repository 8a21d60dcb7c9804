"""Models and data sets of the Hugging Face hub, by id, pinned to a commit, in the cache of this machine."""
