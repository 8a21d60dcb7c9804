"""The `teacher` section."""

from typing import Literal

from pydantic import Field

from slipstream.config.paths import HomePath
from slipstream.config.sections.section import Address, Section


class TeacherConfig(Section):
    """The teacher of a distillation, a model in a pod of its own, and the learner's requests to it."""

    address: Address = "127.0.0.1:0"
    """host:port of the service; port 0 takes a free one."""
    path: HomePath | None = None
    """Hugging Face directory of a causal language model with the policy's tokenizer; null is no teacher."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the forward pass; auto is float32 on a CPU, and that of the saved weights on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the teacher computes; auto takes a GPU if there is one."""
    threads: int = Field(1, ge=1)
    """CPU threads of the teacher."""
    batch_tokens: int = Field(8192, ge=1)
    """Most tokens in a forward pass, with padding; a longer completion has a pass to itself."""
    queue: int = Field(1024, ge=1)
    """Most completions in the queue or in progress; further prompts are refused with a retry-after hint."""
    requests: int = Field(8, ge=1)
    """Most prompts in flight from the learner to all teacher pods together."""
    answer_seconds: float = Field(10.0, gt=0)
    """Deadline of the first try of a request. The deadline doubles after every two tries, up to
    `timeout_seconds`."""
    timeout_seconds: float = Field(120.0, gt=0)
    """Longest deadline of one try."""
    patience_seconds: float = Field(300.0, gt=0)
    """Time without an answer after which the learner writes a checkpoint and stops."""
    start_timeout_seconds: float = Field(900.0, gt=0)
    """Longest time that `slipstream run` waits for the model to load."""
