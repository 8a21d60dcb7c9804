"""What a stage of step labels writes down: the steps of each answer with their hard and soft labels.

A row has the columns of TRL's stepwise supervision format (`prompt`, `completions`, `labels`), which its
PRMTrainer reads, and the estimates behind the labels. See Math-Shepherd, arXiv:2312.08935: the soft estimate
of a step is the share of the completions behind it that is right, and its hard estimate, here the label, is
whether any is.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from slipstream.config.stages import StepLabelsStage
from slipstream.learner.stages.demonstrations import prompt_text
from slipstream.learner.stages.supervised import Interrupted, Progress
from slipstream.learner.stages.verified import NothingKept, RoundResult
from slipstream.prompts.steps import split_steps
from slipstream.records import Completion, Group, Reward


class StepLabelling:
    """Takes the place of the training of a round, and trains nothing."""

    def __init__(self, stage: StepLabelsStage, *, reward: str) -> None:
        self._stage = stage
        self._reward = reward

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: Progress,
        stopped: Callable[[], bool],
    ) -> RoundResult:
        """The rows of a round, in the order of dispatch, one an answer. Errors: NothingKept, Interrupted."""
        if stopped():
            raise Interrupted
        counts: Counter[str] = Counter()
        rows: list[dict[str, object]] = []
        for group in sorted(groups, key=lambda group: group.dispatch_index):
            for answer in group.completions:
                counts["completions"] += 1
                shares = shares_of(answer, reward=self._reward)
                if not shares:
                    counts["withheld" if answer.withheld else "unlabelled"] += 1
                    continue
                rows.append(labelled_row(group, answer, self._stage, reward=self._reward))
                counts["steps"] += len(shares)
                counts["right_steps"] += sum(share > 0 for share in shares)
        found = {name: number for name, number in counts.items() if number}
        if not rows:
            raise NothingKept(
                f"labelled 0 of {counts['completions']} answers ({counts['withheld']} withheld): the others "
                f"have no step, more than {self._stage.max_steps} (max_steps), or one that could not be "
                "judged; look at `separator`, and at the verifier's log"
            )
        return RoundResult(rows=rows, counts=found, steps=0, loss=math.nan, tokens=0)


def shares_of(answer: Completion, *, reward: str) -> list[float]:
    """The soft estimates of its steps; empty for an answer whose steps were not labelled."""
    if answer.withheld or not any(answer.mask):
        return []
    return [step.value for step in _judged(answer, reward).steps]


def labelled_row(
    group: Group, answer: Completion, stage: StepLabelsStage, *, reward: str
) -> dict[str, object]:
    """One line of the file, of an answer whose steps were labelled."""
    judged, shares = _judged(answer, reward), shares_of(answer, reward=reward)
    steps = split_steps(answer.text, stage.separator)
    assert len(steps) == len(shares), "both are cut at the stage's separator"
    return {
        "prompt": prompt_text(group.prompt),
        "completions": steps,
        "labels": [share > 0 for share in shares],
        "soft_labels": shares,
        "samples": stage.samples,
        "right": judged.value >= stage.least_reward,
        "prompt_id": group.prompt.prompt_id,
        "prompt_token_ids": list(group.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "step_token_ends": [step.token_end for step in judged.steps],
    }


def _judged(answer: Completion, reward: str) -> Reward:
    return next(given for given in answer.rewards if given.name == reward)
