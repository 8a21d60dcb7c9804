"""The messages to a judge that ranks a group, and the scores of its ranking.

Equal answers are shown once, in random order, each between two lines with the same random marker.
"""

from collections.abc import Sequence

from slipstream.config.rewards import JudgeConfig
from slipstream.records import Prompt
from slipstream.verifier.judge.question import NoScore, json_reply, last_line, turns, verdict_line

ALONE = 0.5
FORMS = {
    "line": "Rank the {number} answers. End with one line that says `RANKING: ` and all their numbers, the "
    "best first, ` > ` between a better and a worse one and ` = ` between equals, and nothing else, as in "
    "`RANKING: 2 > 1 = 3`.",
    "json": 'Rank the {number} answers. Reply with one JSON object and nothing else: {{"reason": "...", '
    '"ranking": [[2], [1, 3]]}}, all their numbers, the best first, equals in one list.',
}
LINE = verdict_line("RANKING", "[0-9]+(?: ?[>=] ?[0-9]+)*")
Levels = list[list[int]]
"""Indices of the answers that the judge sees, the best level first."""


def messages(
    config: JudgeConfig, prompt: Prompt, texts: Sequence[str], *, marker: str
) -> list[dict[str, str]]:
    """Return the two messages to the judge, with the answers numbered from 1."""
    form = FORMS[config.reply].format(number=len(texts))
    marked = "\n\n".join(
        f"Answer {number}:\n{marker}\n{text}\n{marker}" for number, text in enumerate(texts, start=1)
    )
    return turns(config, prompt, marked, form=form, marker=marker)


def levels_of(config: JudgeConfig, reply: str, *, answers: int) -> Levels:
    """Return the ranking in a reply. Errors: NoScore, also if it lacks an answer or repeats one."""
    levels = _from_json(reply) if config.reply == "json" else _from_last_line(reply)
    if sorted(number for level in levels for number in level) != list(range(1, answers + 1)):
        raise NoScore(f"the judge ranked {levels}, and not each of 1 to {answers} once")
    return [[number - 1 for number in level] for level in levels]


def scores(levels: Levels, times: Sequence[int]) -> list[float]:
    """Return for each answer the share of the other answers of the group that it beats; a tie counts half.

    `times`: how often each answer occurs in the group.
    """
    others = sum(times) - 1
    if not others:
        return [ALONE]
    shares, below = [0.0] * len(times), sum(times)
    for level in levels:
        equal = sum(times[place] for place in level)
        below -= equal
        for place in level:
            shares[place] = (below + (equal - 1) / 2) / others
    return shares


def _from_last_line(reply: str) -> Levels:
    last = last_line(reply)
    line = LINE.fullmatch(last)
    if line is None:
        raise NoScore(f"the last line of the judge is {last[:80]!a}, and not `RANKING: 2 > 1 = 3`")
    return [[int(number) for number in level.split("=")] for level in line[1].split(">")]


def _from_json(reply: str) -> Levels:
    ranking = json_reply(reply).get("ranking")
    if not isinstance(ranking, list) or not all(
        isinstance(level, list) and all(type(number) is int for number in level) for level in ranking
    ):
        raise NoScore(f"the judge said {reply[:80]!a}, which has no list of lists of numbers `ranking`")
    return ranking
