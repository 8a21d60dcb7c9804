"""The data of examples/agent_program.yaml: sums of two numbers, each of one digit or from 500 to 999.

    python -m examples.agent_questions > examples/agent_program.jsonl

A demonstration is what stands behind the question when the agent has ended: an answer, or `?`, the result of
the calculator, `:` and an answer. The cold start shows right answers to most sums of one digit, random
answers to larger sums, and careless copies of what the calculator says.
"""

import json
from random import Random

ROWS = 2000


def row(random: Random) -> dict[str, str]:
    """Return a question with its answer and a demonstration."""
    hard = random.random() < 0.6
    low, high = (500, 999) if hard else (0, 9)
    left, right = random.randint(low, high), random.randint(low, high)
    answer = str(left + right)
    asks = random.random() < 0.6
    wrong = random.random() < (0.15 if asks else 1.0 if hard else 0.1)
    final = str(random.randint(2 * low, 2 * high)) if wrong else answer
    return {
        "prompt": f"{left}+{right}=",
        "answer": answer,
        "demonstration": f"?{answer}:{final}" if asks else final,
    }


def main() -> None:
    """Print the rows."""
    random = Random(0)
    for _ in range(ROWS):
        print(json.dumps(row(random)))


if __name__ == "__main__":
    main()
