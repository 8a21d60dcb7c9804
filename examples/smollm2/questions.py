"""Questions for `examples/largest_smollm2.yaml`: which of three numbers is the largest?

    python examples/smollm2/questions.py FOLDER        # writes training.jsonl and held-out.jsonl there

The largest number is drawn first, and evenly: no answer is commoner than another, so that nothing is to be
gained from giving the same answer always. Whoever picks one of the three without looking is right in a third.
Two solved questions stand before each one, as turns of the conversation, and show the form of an answer. No
three numbers are asked about twice, in any order.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

LEAST, MOST = 12, 99
TRAINING, HELD_OUT = 4000, 256


def make_rows(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of `messages` and `answer`."""
    random, seen, rows = Random(seed), set[frozenset[int]](), []
    while len(rows) < count:
        numbers, *shown = (_numbers(random) for _ in range(3))
        if frozenset(numbers) not in seen:
            seen.add(frozenset(numbers))
            turns = [
                turn for each in shown for turn in (_turn("user", _ask(each)), _turn("assistant", _top(each)))
            ]
            rows.append({"messages": [*turns, _turn("user", _ask(numbers))], "answer": _top(numbers)})
    return rows


def _numbers(random: Random) -> list[int]:
    largest = random.randint(LEAST, MOST)
    numbers = [largest, *random.sample(range(LEAST - 2, largest), 2)]
    random.shuffle(numbers)
    return numbers


def _ask(numbers: Iterable[int]) -> str:
    return f"Which of these numbers is the largest: {', '.join(map(str, numbers))}?"


def _top(numbers: Iterable[int]) -> str:
    return str(max(numbers))


def _turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def main(folder: Path) -> None:
    """Write both files."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = make_rows(TRAINING + HELD_OUT)
    for name, part in (("training", rows[:TRAINING]), ("held-out", rows[TRAINING:])):
        lines = (json.dumps(row) + "\n" for row in part)
        (folder / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
