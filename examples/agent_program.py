"""The agent of docs/agents.md: a program with the `openai` package, which knows nothing of training.

The model answers a sum, or writes `?` first; then the agent inserts what its calculator says, and asks again.
"""

import json
import os

import openai


def main() -> None:
    """Answer the question of SLIPSTREAM_PROMPT, and write the answer into answer.txt."""
    client = openai.OpenAI()  # reads OPENAI_BASE_URL and OPENAI_API_KEY
    question = json.loads(os.environ["SLIPSTREAM_PROMPT"])["text"]
    first = client.completions.create(model="policy", prompt=question, max_tokens=1).choices[0].text
    text = question + first
    if first == "?":
        text += f"{calculator(question)}:"
        first = ""
    rest = client.completions.create(model="policy", prompt=text, max_tokens=4).choices[0].text
    with open("answer.txt", "w", encoding="utf-8") as file:
        file.write(first + rest)


def calculator(question: str) -> int:
    """Return the sum of a question such as `12+34=`."""
    left, right = question.rstrip("=").split("+")
    return int(left) + int(right)


if __name__ == "__main__":
    main()
