"""Sources of prompts: built-in puzzles, files and data sets. Prompts have an index; torch is not imported."""

from slipstream.prompts.make import make_source
from slipstream.prompts.source import PromptSource

__all__ = ["PromptSource", "make_source"]
