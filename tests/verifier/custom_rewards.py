"""Valid and faulty rewards, as a user may write them, for the tests of the pool."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from slipstream.records import Prompt, StepReward
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, invalid


def length(prompt: Prompt, answer: Answer, *, per: float = 1.0) -> float:
    """Score the length of the answer."""
    return len(answer.text) / per


def said(prompt: Prompt, answer: Answer) -> object:
    """Return the result that the answer names."""
    results: dict[str, object] = {
        "true": True,
        "half": 0.5,
        "verdict": Verdict(value=2.0, detail="two"),
        "invalid": invalid("unreadable"),
        "steps": Verdict(
            value=1.0, steps=(StepReward(value=True, text_end=2), StepReward(value=0.5, text_end=5))
        ),
        "a step of words": Verdict(value=1.0, steps=(StepReward(value="1", text_end=2),)),  # type: ignore[arg-type]
        "none": None,
        "text": "1",
        "nan": float("nan"),
    }
    return results[answer.text]


def group_ranks(prompt: Prompt, answers: Sequence[Answer], *, best: float = 1.0) -> list[float]:
    """Score the longest answer with `best`, and the others with 0."""
    longest = max(answers, key=lambda answer: len(answer.text))
    return [best if answer is longest else 0.0 for answer in answers]


def one_short(prompt: Prompt, answers: Sequence[Answer]) -> list[float]:
    """Return one score too few."""
    return [0.0] * (len(answers) - 1)


def whose_process(prompt: Prompt, answer: Answer) -> int:
    """Return the id of the process that scores."""
    return os.getpid()


def misbehaves(prompt: Prompt, answer: Answer) -> float:
    """Do what the answer says."""
    match answer.text.split(" ", 1):
        case ["spin"]:
            while True:
                pass
        case ["sleep"]:
            time.sleep(3600)
        case ["exit"]:
            os._exit(3)
        case ["quit"]:
            sys.exit("no such option")
        case ["crash"]:
            os.kill(os.getpid(), signal.SIGSEGV)
        case ["memory"]:
            return len(bytearray(1 << 40))
        case ["recurse"]:
            return misbehaves(prompt, answer)
        case ["print"]:
            print("forged " * 1000)
            sys.stdout.flush()
        case ["unusable"]:
            raise UnusableGroundTruth(f"prompt {prompt.prompt_id}: cannot be read")
        case ["raise"]:
            raise KeyError("no such thing")
        case ["offspring", path]:
            child = subprocess.Popen(["sleep", "3600"])
            Path(path).write_text(str(child.pid))
            while True:
                pass
    return 1.0
