"""Where prompts come from: built-in puzzles, files and data sets; by index, without torch."""

from slipstream.prompts.make import make_source
from slipstream.prompts.source import PromptSource

__all__ = ["PromptSource", "make_source"]
