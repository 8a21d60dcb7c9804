"""Environments of the tests, by import path."""

from slipstream.actor.environment import Episode


class TwoTurns:
    """Samples two turns, and gives the number of turns as a reward."""

    async def run(self, episode: Episode) -> None:
        await episode.sample(max_tokens=2)
        episode.observe("!")
        await episode.sample(max_tokens=2)
        episode.rewards["turns"] = float(episode.turns)
        episode.rewards["unread"] = 1.0
