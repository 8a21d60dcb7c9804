"""The game of examples/wordle.yaml: guess a word of three letters from a list of 28, in six guesses.

    python -m examples.wordle > examples/wordle.jsonl

writes the rows of the games: a prompt, the secret word, and for the cold start a game in which two thirds of
the guesses are random words. A guess is answered by a mark for each letter: `+` the letter is right, `?` the
word has it in another place, `-` the word does not have it.
"""

import json
from collections.abc import Mapping, Sequence
from random import Random

from slipstream.actor.environment import Episode

LIST = (
    "bag ban bat beg bet big bin bit bug bun but pan pat peg pen pet pig pin pit pug pun put tag tan ten tin "
    "tug tun"
)
WORDS = tuple(LIST.split())
"""No word has a letter twice."""
LETTERS = 3
MOST_GUESSES = 6
GAMES = 1000
SOLVED, NO_WORD = "+" * LETTERS, "!" * LETTERS


class Wordle:
    """The policy guesses the word in `episode.prompt.answer`."""

    async def run(self, episode: Episode) -> None:
        """Give `solved`, 1 or 0, `turns`, the number of guesses, and after each guess `contradictions`, the
        number of letters that cannot be right after the marks before."""
        secret, seen = episode.prompt.answer, dict[str, str]()
        while SOLVED not in seen.values() and episode.turns < MOST_GUESSES:
            guess = await episode.sample(max_tokens=LETTERS)
            episode.reward("contradictions", contradictions(guess, seen))
            seen[guess] = marks(guess, secret)
            episode.observe(seen[guess])
        episode.rewards["solved"] = float(SOLVED in seen.values())
        episode.rewards["turns"] = float(episode.turns)


def contradictions(guess: str, seen: Mapping[str, str]) -> int:
    """Return how many letters of a guess cannot be right; all of them if the guess is not on the list.

    `seen`: marks of the earlier guesses.
    """
    if guess not in WORDS:
        return LETTERS
    words = [(word, answer) for word, answer in seen.items() if answer != NO_WORD]
    return sum(
        any(contradicts(letter, place, word, answer) for word, answer in words)
        for place, letter in enumerate(guess)
    )


def contradicts(letter: str, place: int, word: str, answer: str) -> bool:
    """Return whether the marks of an earlier word exclude a letter in a place."""
    if word[place] == letter:
        return answer[place] != "+"
    return answer[place] == "+" or (letter in word and answer[word.index(letter)] == "-")


def marks(guess: str, secret: str) -> str:
    """Return a mark for each letter of a guess; `!!!` if the guess is not on the list."""
    if guess not in WORDS:
        return NO_WORD
    pairs = zip(guess, secret, strict=True)
    return "".join("+" if own == letter else "?" if own in secret else "-" for own, letter in pairs)


def random_game(random: Random, secret: str) -> str:
    """Return the text of a game in which a third of the guesses fit all marks before them."""
    guesses: list[str] = []
    while secret not in guesses and len(guesses) < MOST_GUESSES:
        words = fitting(guesses, secret) if random.random() < 1 / 3 else WORDS
        guesses.append(random.choice(words))
    return "".join(guess + marks(guess, secret) for guess in guesses)


def fitting(guesses: Sequence[str], secret: str) -> Sequence[str]:
    """Return the words that would have got the marks of the secret word for these guesses."""
    return [word for word in WORDS if all(marks(guess, word) == marks(guess, secret) for guess in guesses)]


def main() -> None:
    """Print the rows."""
    random = Random(0)
    for number in range(GAMES):
        secret = random.choice(WORDS)
        row = {"prompt": f"game {number:03}:", "answer": secret}
        print(json.dumps({**row, "demonstration": random_game(random, secret)}))


if __name__ == "__main__":
    main()
