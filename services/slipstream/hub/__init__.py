"""The hub: models and data sets by id, pinned to a commit, in the cache of this machine."""
