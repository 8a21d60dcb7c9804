"""The tool and the data of examples/calculator_tool.yaml: products of numbers of two digits.

    python -m examples.calculator_tool examples

writes `calculator_tool.jsonl`, the questions, and `calculator_demonstrations.jsonl`, the conversations of the
cold start. Two fifths of these call the tool with the right numbers and copy its result. The others guess,
mistype a number or the result, or write a call that cannot be read. Prompts and demonstrations are the text
that the chat template of the example writes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

QUESTIONS, DEMONSTRATIONS = 1000, 1000
SMALLEST, LARGEST = 32, 99
"""All products have four digits."""
HEADER, END, CLOSE = "[multiply]", "<eos>", ";"
"""What the chat template writes of the tool, and after a turn of the policy and of others."""
UNREADABLE = "Error: the call cannot be read: it is no JSON object"


def multiply(a: int, b: int) -> int:
    """Return the product of two numbers."""
    return a * b


def demonstration(random: Random, a: int, b: int) -> str:
    """Return the text of a conversation after its question; the way is drawn at random."""
    way = random.random()
    if way < 0.2:
        return guess(random)
    if way < 0.3:
        broken = call(a, b).replace("}}", "}")
        return f"{broken}{END}{UNREADABLE}{CLOSE}{guess(random)}"
    if way < 0.45:
        return asked(a, mistyped(random, b))
    if way < 0.6:
        return asked(a, b, answer=mistyped(random, multiply(a, b)))
    return asked(a, b)


def call(a: int, b: int) -> str:
    """Return the text of a call in the form of Hermes."""
    return f'<tool_call>{{"name": "multiply", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


def asked(a: int, b: int, *, answer: int | None = None) -> str:
    """Return a call, its result, and an answer: the result, unless another one is given."""
    result = multiply(a, b)
    return f"{call(a, b)}{END}{result}{CLOSE}{result if answer is None else answer}"


def guess(random: Random) -> str:
    """Return a random number of four digits."""
    return str(random.randint(1000, 9999))


def mistyped(random: Random, number: int) -> int:
    """Return the number with another last digit."""
    return number // 10 * 10 + (number + random.randint(1, 9)) % 10


def rows(random: Random) -> Iterator[dict[str, str]]:
    """Yield the questions, then the demonstrations, about other pairs of numbers."""
    numbers = range(SMALLEST, LARGEST + 1)
    pairs = random.sample([(a, b) for a in numbers for b in numbers], QUESTIONS + DEMONSTRATIONS)
    for position, (a, b) in enumerate(pairs):
        row = {"prompt": f"{a}*{b}=", "answer": str(multiply(a, b))}
        if position >= QUESTIONS:
            row["prompt"] = f"{HEADER}{row['prompt']}{CLOSE}"
            row["demonstration"] = demonstration(random, a, b)
        yield row


def main(folder: Path) -> None:
    """Write both files."""
    lines = [json.dumps(row) + "\n" for row in rows(Random(0))]
    (folder / "calculator_tool.jsonl").write_text("".join(lines[:QUESTIONS]), encoding="utf-8")
    (folder / "calculator_demonstrations.jsonl").write_text("".join(lines[QUESTIONS:]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
