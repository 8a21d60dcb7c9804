"""The tools and the data of examples/calculator_tool.yaml: sums and products of numbers of three digits.

    python -m examples.calculator_tool examples

writes `calculator_tool.jsonl`, the questions, and `calculator_demonstrations.jsonl`, the conversations of the
cold start. About a third of these call the right tool and copy its result. The others guess, take the wrong
tool, mistype a number, or write a call that cannot be read. Prompts and demonstrations are the text that the
chat template of the example writes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

QUESTIONS, DEMONSTRATIONS = 1000, 1000
HEADER = "[add][multiply]"
"""What the chat template writes of the tools."""
END = "<eos>"
UNREADABLE = "Error: the call cannot be read: it is no JSON object"


def add(a: int, b: int) -> int:
    """Return the sum of two numbers."""
    return a + b


def multiply(a: int, b: int) -> int:
    """Return the product of two numbers."""
    return a * b


TOOLS = {"+": add, "*": multiply}


def question(random: Random) -> tuple[int, str, int]:
    """Return two numbers of three digits, and the operation between them."""
    return random.randint(100, 999), random.choice("+*"), random.randint(100, 999)


def demonstration(random: Random, a: int, operation: str, b: int) -> str:
    """Return the text of a conversation after its question; the way is drawn at random."""
    other = {"+": "*", "*": "+"}[operation]
    way = random.random()
    if way < 0.25:
        return guess(random, a, operation, b)
    if way < 0.35:
        broken = call(operation, a, b).replace("}}", "}")
        return f"{broken}{END}{UNREADABLE}\n{guess(random, a, operation, b)}"
    if way < 0.55:
        return asked(other, a, b)
    if way < 0.65:
        return asked(operation, a, mistyped(random, b))
    return asked(operation, a, b)


def call(operation: str, a: int, b: int) -> str:
    """Return the text of a call in the form of Hermes."""
    name = TOOLS[operation].__name__
    return f'<tool_call>{{"name": "{name}", "arguments": {{"a": {a}, "b": {b}}}}}</tool_call>'


def asked(operation: str, a: int, b: int) -> str:
    """Return a call, its result, and the result as the answer."""
    result = TOOLS[operation](a, b)
    return f"{call(operation, a, b)}{END}{result}\n{result}"


def guess(random: Random, a: int, operation: str, b: int) -> str:
    """Return a random number with as many digits as the result."""
    digits = len(str(TOOLS[operation](a, b)))
    return str(random.randint(10 ** (digits - 1), 10**digits - 1))


def mistyped(random: Random, number: int) -> int:
    """Return the number with another last digit."""
    return number // 10 * 10 + (number + random.randint(1, 9)) % 10


def rows(random: Random) -> Iterator[dict[str, str]]:
    """Yield the questions, then the demonstrations, about other numbers."""
    drawn: set[tuple[int, str, int]] = set()
    while len(drawn) < QUESTIONS + DEMONSTRATIONS:
        a, operation, b = question(random)
        if (a, operation, b) in drawn:
            continue
        drawn.add((a, operation, b))
        row = {"prompt": f"{a}{operation}{b}=", "answer": str(TOOLS[operation](a, b))}
        if len(drawn) > QUESTIONS:
            row["prompt"] = f"{HEADER}{row['prompt']}\n"
            row["demonstration"] = demonstration(random, a, operation, b)
        yield row


def main(folder: Path) -> None:
    """Write both files."""
    lines = [json.dumps(row) + "\n" for row in rows(Random(0))]
    (folder / "calculator_tool.jsonl").write_text("".join(lines[:QUESTIONS]), encoding="utf-8")
    (folder / "calculator_demonstrations.jsonl").write_text("".join(lines[QUESTIONS:]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
