"""The reward `math`: whether an expression equals the ground truth. Algebra runs in the pool's children."""

from dataclasses import replace

from slipstream.answers import exact, latex_input
from slipstream.config.rewards.answers import MathConfig
from slipstream.records import Prompt
from slipstream.verifier import adapters, ground_truth, reward
from slipstream.verifier.resources import Resources
from slipstream.verifier.rewards.extracting import extracting
from slipstream.verifier.workers.scorer import PoolScorer

FUNCTION = "slipstream.verifier.rewards.math_child:score"
CLOCK = 2.0
"""Wall-clock seconds for each CPU second of the limit; after them the pool kills the child."""


def math(config: MathConfig, resources: Resources) -> reward.Reward:
    """Make the reward. Its children compare by SymPy."""
    workers = PoolScorer(
        FUNCTION,
        name=config.name,
        seconds=CLOCK * config.timeout_seconds,
        resources=resources,
        arguments={
            "digits": config.digits,
            "computed": config.computed,
            "seconds": 0.9 * config.timeout_seconds,
        },
    )

    async def score(prompt: Prompt, answer: reward.Answer) -> reward.Verdict:
        """Compare without algebra where that is possible; else call a child. A costly answer is invalid."""
        expected = ground_truth.expected_expression(prompt)
        try:
            expression = latex_input.normalize(answer.text)
        except latex_input.UnsupportedExpression as error:
            return reward.invalid(str(error))
        if config.computed and exact.has_quotient(expression) and not exact.has_quotient(expected):
            return reward.invalid("still to be computed: a division")
        same = exact.exactly_equal(expected, expression, digits=config.digits)
        if same is not None:
            return reward.Verdict(value=float(same))
        return await workers.one(replace(prompt, answer=expected), replace(answer, text=expression))

    cache = resources.reward_cache(config, reads=lambda prompt: (prompt.answer,))
    return extracting(
        config, adapters.Concurrently(score, cache=cache), truth=ground_truth.expected_expression
    )
