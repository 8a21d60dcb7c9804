"""The program and the tokenizer of an actor need neither torch nor vllm, which its image lacks."""

import subprocess
import sys
from pathlib import Path

from slipstream.config.sections.model import TinyModel
from slipstream.learner.policy.tiny import make_tiny_model

PROGRAM = """
import sys
sys.modules.update(torch=None, vllm=None, redis=None)  # to import one of them is an error
import slipstream.actor.__main__
from slipstream.config import parse_config
from slipstream.tokens import load_engine_tokens
from pathlib import Path
config = parse_config({}, ["model.path=" + sys.argv[1]])
print(load_engine_tokens(config, Path(sys.argv[1])).encode_text("1+2="))
"""


def test_the_program_of_an_actor_loads_and_tokenizes_without_torch_vllm_and_redis(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(), tmp_path, seed=0)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count(",") == 3, "four characters are four tokens"
