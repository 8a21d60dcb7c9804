"""The reward `length`: a penalty on long completions."""

from slipstream.config.rewards.shapes import LengthConfig
from slipstream.records import Prompt
from slipstream.verifier import adapters, reward
from slipstream.verifier.resources import Resources


def length(config: LengthConfig, resources: Resources) -> reward.Reward:
    """Make the reward: DAPO's soft overlong punishment, or the variant without a floor.

    -max(0, (n - safe) / (max - safe)), and never below -1 unless linear. See DAPO, arXiv:2503.14476, eq. 13.
    """
    span = config.max_tokens - config.safe_tokens

    def score(prompt: Prompt, answer: reward.Answer) -> reward.Verdict:
        excess = max(0.0, (answer.tokens - config.safe_tokens) / span)
        return reward.Verdict(value=-(excess if config.shape == "linear" else min(1.0, excess)) or 0.0)

    return adapters.EachAnswer(score)
