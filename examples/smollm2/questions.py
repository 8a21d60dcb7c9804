"""Questions for `examples/counting_smollm2.yaml`: which number comes right before, or after, another one?

    python examples/smollm2/questions.py FOLDER        # writes training.jsonl and held-out.jsonl there

Every three-digit number is asked about once in each direction, so that no answer is commoner than another
and nothing is to be gained from a guess. Two solved training questions, one of each kind, stand before each
one as turns of the conversation, and show the form of an answer.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

STEPS = {"before": -1, "after": 1}
LEAST, MOST = 101, 998
HELD_OUT = 256

Question = tuple[str, int]


def make_rows(*, seed: int = 0) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and held-out rows of `messages` and `answer`, in random order."""
    random = Random(seed)
    questions = [(where, number) for number in range(LEAST, MOST + 1) for where in STEPS]
    random.shuffle(questions)
    held_out, training = questions[:HELD_OUT], questions[HELD_OUT:]
    shown = {where: [question for question in training if question[0] == where] for where in STEPS}
    rows = [_row(question, shown, random) for question in (*training, *held_out)]
    return rows[:-HELD_OUT], rows[-HELD_OUT:]


def _row(question: Question, shown: dict[str, list[Question]], random: Random) -> dict[str, Any]:
    solved = [_other(shown[where], question, random) for where in STEPS]
    random.shuffle(solved)
    turns = [
        turn for each in solved for turn in (_turn("user", _text(each)), _turn("assistant", _answer(each)))
    ]
    return {"messages": [*turns, _turn("user", _text(question))], "answer": _answer(question)}


def _other(questions: Sequence[Question], question: Question, random: Random) -> Question:
    """Return a question with another answer."""
    while _answer(other := random.choice(questions)) == _answer(question):
        pass
    return other


def _text(question: Question) -> str:
    where, number = question
    return f"Which number comes right {where} {number}?"


def _answer(question: Question) -> str:
    where, number = question
    return str(number + STEPS[where])


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(("training", "held-out"), make_rows(), strict=True):
        lines = (json.dumps(row) + "\n" for row in rows)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
