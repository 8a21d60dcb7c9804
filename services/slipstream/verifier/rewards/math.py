"""Is the answer a mathematical expression equal to the ground truth? Judged in the pool's children."""

from dataclasses import replace
from importlib.util import find_spec

from slipstream.answers.exact import exactly_equal, has_quotient
from slipstream.answers.latex_input import UnsupportedExpression, readable
from slipstream.config.rewards.answers import MathConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.ground_truth import expected_expression
from slipstream.verifier.reward import Answer, NotHere, Reward, Verdict, invalid
from slipstream.verifier.rewards.extracting import extracting
from slipstream.verifier.surroundings import Surroundings
from slipstream.verifier.workers.judge import InWorkers

FUNCTION = "slipstream.verifier.rewards.math_child:judge"
CLOCK = 2.0
"""Seconds of a clock to a second of a core, after which a child is killed that did not give up by itself."""


def math(config: MathConfig, surroundings: Surroundings) -> Reward:
    """The reward by SymPy. Errors: NotHere when it is not installed."""
    if find_spec("sympy") is None:
        raise NotHere("needs sympy: pip install '.[verifier]' in a clone of Slipstream")
    workers = InWorkers(
        FUNCTION,
        name=config.name,
        seconds=CLOCK * config.timeout_seconds,
        surroundings=surroundings,
        arguments={
            "digits": config.digits,
            "computed": config.computed,
            "seconds": 0.9 * config.timeout_seconds,
        },
    )

    async def judge(prompt: Prompt, answer: Answer) -> Verdict:
        """Refuse what could take for ever, and compare what needs no algebra, without asking a child."""
        expected = expected_expression(prompt)
        try:
            given = readable(answer.text)
        except UnsupportedExpression as error:
            return invalid(str(error))
        if config.computed and has_quotient(given) and not has_quotient(expected):
            return invalid("still to be computed: a division")
        same = exactly_equal(expected, given, digits=config.digits)
        if same is not None:
            return Verdict(value=float(same))
        return await workers.one(replace(prompt, answer=expected), replace(answer, text=given))

    memory = surroundings.memory(config, reads=lambda prompt: (prompt.answer,))
    return extracting(config, Concurrently(judge, memory=memory), truth=expected_expression)
