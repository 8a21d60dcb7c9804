"""The game of examples/guess_number.yaml: guess a digit; after each guess the answer is `<`, `>` or `=`.

    python -m examples.guess_number > examples/guess_number.jsonl

writes the rows of the games: a prompt, the secret number, and for the warm-up a game of random guesses.
"""

import json
from random import Random

from slipstream.actor.environment import Episode

LARGEST = 9
GAMES = 1000
MOST_GUESSES = 12


class GuessNumber:
    """The policy guesses the number in `episode.prompt.answer`; `>` says that the number is larger."""

    def __init__(self, most_guesses: int = MOST_GUESSES) -> None:
        self._most_guesses = most_guesses

    async def run(self, episode: Episode) -> None:
        """Give `solved`, 1 or 0, and `turns`, the number of guesses."""
        secret = int(episode.prompt.answer)
        answer = ""
        while answer != "=" and episode.turns < self._most_guesses:
            answer = hint(await episode.sample(max_tokens=1), secret)
            episode.observe(answer)
        episode.rewards["solved"] = float(answer == "=")
        episode.rewards["turns"] = float(episode.turns)


def hint(guess: str, secret: int) -> str:
    """Return what the game says to a guess; `?` to a text that is no digit."""
    if not guess.isdecimal():
        return "?"
    return "=" if int(guess) == secret else ">" if secret > int(guess) else "<"


def random_game(random: Random, secret: int) -> str:
    """Return the text of a game of random guesses, some of them impossible after the hints before them."""
    text = ""
    while not text.endswith("=") and len(text) < 2 * MOST_GUESSES:
        guess = str(random.randint(0, LARGEST))
        text += guess + hint(guess, secret)
    return text


def main() -> None:
    """Print the rows."""
    random = Random(0)
    for number in range(GAMES):
        secret = random.randint(0, LARGEST)
        row = {"prompt": f"game {number:03}:", "answer": str(secret)}
        print(json.dumps({**row, "demonstration": random_game(random, secret)}))


if __name__ == "__main__":
    main()
