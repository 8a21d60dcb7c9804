"""The teacher of a distillation: a model in a pod of its own."""

from typing import Literal

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Address, Section


class TeacherConfig(Section):
    """The model that a distillation learns from, and how the learner asks it."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    path: HomePath | None = None
    """Hugging Face directory of a causal language model with the policy's tokenizer; null is no teacher."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of its forward pass; auto is float32 on a CPU, and that of the saved weights on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the teacher computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the teacher."""
    batch_tokens: int = Field(8192, ge=1)
    """Tokens of one forward pass, padding included; a longer completion has one to itself."""
    queue: int = Field(1024, ge=1)
    """Completions in work or waiting, beyond which a prompt is refused with a hint when to come again."""
    requests: int = Field(8, ge=1)
    """Prompts that the learner asks about at a time, of all teacher pods together."""
    answer_seconds: float = Field(10.0, gt=0)
    """A prompt whose answer has not come in this time is asked about again, with twice the time after every
    two attempts, up to `timeout_seconds`."""
    timeout_seconds: float = Field(120.0, gt=0)
    """Longest wait for one answer."""
    patience_seconds: float = Field(300.0, gt=0)
    """How long the learner asks a teacher that does not answer, before it stops with a checkpoint."""
    start_timeout_seconds: float = Field(300.0, gt=0)
    """Longest loading of the model, for `slipstream run`."""
