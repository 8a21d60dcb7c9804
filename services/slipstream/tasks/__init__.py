"""Built-in tasks and data files: prompts by index, and what judges an answer. Nothing here needs torch."""

from slipstream.tasks.countdown import check_countdown
from slipstream.tasks.expression import InvalidExpression
from slipstream.tasks.make import make_source
from slipstream.tasks.source import PromptSource

__all__ = ["InvalidExpression", "PromptSource", "check_countdown", "make_source"]
