"""The output of a stage of step labels: the steps of each answer, with hard and soft labels.

A row has the columns of TRL's stepwise supervision format (`prompt`, `completions`, `labels`), which its
PRMTrainer reads, and the estimates behind the labels. See Math-Shepherd, arXiv:2312.08935: the soft estimate
of a step is the share of right completions after it, and its hard estimate, here the label, is
whether any is right.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence

from slipstream.config.stages import StepLabelsStage
from slipstream.learner.stages import demonstrations, supervised, verified
from slipstream.prompts.steps import split_steps
from slipstream.records import Completion, Group, Reward


class StepLabelling:
    """Labels steps in the place of the training of a round."""

    def __init__(self, stage: StepLabelsStage, *, reward: str) -> None:
        self._stage = stage
        self._reward = reward

    def learn(
        self,
        groups: Sequence[Group],
        *,
        version: int,
        report: supervised.Progress,
        stopped: Callable[[], bool],
    ) -> verified.RoundResult:
        """Return one row for each answer, in the order of dispatch. Errors: NothingKept, Interrupted."""
        if stopped():
            raise supervised.Interrupted
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
        nonzero = {name: number for name, number in counts.items() if number}
        if not rows:
            raise verified.NothingKept(
                f"labelled 0 of {counts['completions']} answers ({counts['withheld']} withheld): the others "
                f"have no step, more than {self._stage.max_steps} (max_steps), or one that could not be "
                "judged; look at `separator`, and at the verifier's log"
            )
        return verified.RoundResult(rows=rows, counts=nonzero, steps=0, loss=math.nan, tokens=0)


def shares_of(answer: Completion, *, reward: str) -> list[float]:
    """Return the soft estimates of an answer's steps; empty if its steps were not labelled."""
    if answer.withheld or not any(answer.mask):
        return []
    return [step.value for step in _reward_of(answer, reward).steps]


def labelled_row(
    group: Group, answer: Completion, stage: StepLabelsStage, *, reward: str
) -> dict[str, object]:
    """Return one line of the file, for an answer whose steps were labelled."""
    verdict, shares = _reward_of(answer, reward), shares_of(answer, reward=reward)
    steps = split_steps(answer.text, stage.separator)
    assert len(steps) == len(shares), "rollout and learner split at the same separator"
    return {
        "prompt": demonstrations.prompt_text(group.prompt),
        "completions": steps,
        "labels": [share > 0 for share in shares],
        "soft_labels": shares,
        "samples": stage.samples,
        "right": verdict.value >= stage.least_reward,
        "prompt_id": group.prompt.prompt_id,
        "prompt_token_ids": list(group.prompt_token_ids),
        "token_ids": list(answer.token_ids),
        "step_token_ends": [step.token_end for step in verdict.steps],
    }


def _reward_of(answer: Completion, reward: str) -> Reward:
    return next(each for each in answer.rewards if each.name == reward)
