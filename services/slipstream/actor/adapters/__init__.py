"""Environments of other projects: OpenEnv."""
