"""The reward `countdown`: whether an arithmetic expression reaches the target with the given numbers."""

from slipstream.answers.arithmetic import InvalidExpression, check_countdown
from slipstream.config.rewards import CountdownConfig
from slipstream.records import Prompt
from slipstream.verifier.adapters import EachAnswer
from slipstream.verifier.ground_truth import countdown_puzzle
from slipstream.verifier.resources import Resources
from slipstream.verifier.reward import Answer, Reward, Verdict, invalid


def countdown_reward(config: CountdownConfig, resources: Resources) -> Reward:
    """Make the reward, which has no arguments."""
    return EachAnswer(countdown)


def countdown(prompt: Prompt, answer: Answer) -> Verdict:
    """Return 1 if the expression reaches the target with the given numbers, each at most once, else 0."""
    numbers, target = countdown_puzzle(prompt)
    try:
        return Verdict(value=float(check_countdown(answer.text.strip(), numbers, target)))
    except InvalidExpression as error:
        return invalid(str(error))
