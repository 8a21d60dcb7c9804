"""The reward `math`: whether an expression equals the ground truth. Algebra runs in the pool's children."""

from dataclasses import replace

from slipstream.answers.exact import exactly_equal, has_quotient
from slipstream.answers.latex_input import UnsupportedExpression, normalize
from slipstream.config.rewards.answers import MathConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.ground_truth import expected_expression
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid
from slipstream.verifier.rewards.extracting import extracting
from slipstream.verifier.workers.scorer import PoolScorer

FUNCTION = "slipstream.verifier.rewards.math_child:score"
CLOCK = 2.0
"""Wall-clock seconds for each CPU second of the limit; after them the pool kills the child."""


def math(config: MathConfig, resources: Resources) -> Reward:
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

    async def score(prompt: Prompt, answer: Answer) -> Verdict:
        """Compare without algebra where that is possible; else call a child. A costly answer is invalid."""
        expected = expected_expression(prompt)
        try:
            expression = normalize(answer.text)
        except UnsupportedExpression as error:
            return invalid(str(error))
        if config.computed and has_quotient(expression) and not has_quotient(expected):
            return invalid("still to be computed: a division")
        same = exactly_equal(expected, expression, digits=config.digits)
        if same is not None:
            return Verdict(value=float(same))
        return await workers.one(replace(prompt, answer=expected), replace(answer, text=expression))

    cache = resources.reward_cache(config, reads=lambda prompt: (prompt.answer,))
    return extracting(config, Concurrently(score, cache=cache), truth=expected_expression)
