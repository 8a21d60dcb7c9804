"""Sources of prompts: built-in puzzles, files and data sets. A source gives the prompt of any index.

Nothing here imports torch.
"""

from slipstream.prompts.make import make_source
from slipstream.prompts.source import PromptSource

__all__ = ["PromptSource", "make_source"]
