"""What a judge is asked of a whole group, and the scores in its ranking.

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
"""Places of the answers that are shown, the best level first."""


def messages(
    config: JudgeConfig, prompt: Prompt, texts: Sequence[str], *, marker: str
) -> list[dict[str, str]]:
    """The two turns that the judge sees, with the answers numbered from 1."""
    form = FORMS[config.reply].format(number=len(texts))
    marked = "\n\n".join(
        f"Answer {number}:\n{marker}\n{text}\n{marker}" for number, text in enumerate(texts, start=1)
    )
    return turns(config, prompt, marked, form=form, marker=marker)


def levels_of(config: JudgeConfig, reply: str, *, answers: int) -> Levels:
    """The ranking in a reply. Errors: NoScore, also for one that lacks an answer or has one twice."""
    levels = _from_json(reply) if config.reply == "json" else _from_last_line(reply)
    if sorted(number for level in levels for number in level) != list(range(1, answers + 1)):
        raise NoScore(f"the judge ranked {levels}, and not each of 1 to {answers} once")
    return [[number - 1 for number in level] for level in levels]


def scores(levels: Levels, times: Sequence[int]) -> list[float]:
    """Of each answer that is shown the share of the others that it beats, ties half.

    `times`: how often each of them is in the group.
    """
    others = sum(times) - 1
    if not others:
        return [ALONE]
    found, below = [0.0] * len(times), sum(times)
    for level in levels:
        equal = sum(times[place] for place in level)
        below -= equal
        for place in level:
            found[place] = (below + (equal - 1) / 2) / others
    return found


def _from_last_line(reply: str) -> Levels:
    last = last_line(reply)
    found = LINE.fullmatch(last)
    if found is None:
        raise NoScore(f"the last line of the judge is {last[:80]!a}, and not `RANKING: 2 > 1 = 3`")
    return [[int(number) for number in level.split("=")] for level in found[1].split(">")]


def _from_json(reply: str) -> Levels:
    ranking = json_reply(reply).get("ranking")
    if not isinstance(ranking, list) or not all(
        isinstance(level, list) and all(type(number) is int for number in level) for level in ranking
    ):
        raise NoScore(f"the judge said {reply[:80]!a}, which has no list of lists of numbers `ranking`")
    return ranking
