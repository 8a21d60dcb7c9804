"""Checks of `rollout.sampling: verbalized`, which samples several candidate answers in one generation."""

from collections.abc import Iterator

from slipstream.config import problem, schema, stages

KEY = "rollout.sampling"


def verbalized(config: schema.RunConfig) -> Iterator[problem.Problem]:
    """Yield the problems of verbalized sampling, for a run or for one of its stages."""
    if config.rollout.sampling != "verbalized":
        return
    if not config.stages:
        yield from _trains_generations(config)
    elif len(config.stages) == 1 and isinstance(config.stages[0], stages.SampledStage):
        yield from _trains_candidates(config, config.stages[0])


def _trains_generations(config: schema.RunConfig) -> Iterator[problem.Problem]:
    if config.evaluation.sampling != "verbalized":
        yield problem.Problem(
            key=KEY,
            reason="is `verbalized`, so the policy is trained on prompts with an instruction that asks for "
            "candidates, and evaluation.sampling is `plain`: the accuracy is that of another prompt",
            remedy="set evaluation.sampling to `verbalized` to evaluate with the prompts of training",
            severity="note",
        )
    if config.algorithm.supervision == "process":
        yield problem.Problem(
            key=KEY,
            reason="is `verbalized`, so a reward judges the text of one candidate, and with "
            "algorithm.supervision `process` its steps have to be found among the tokens of the whole "
            "generation",
            remedy="set it to `plain`, or take algorithm.supervision `outcome`",
        )


def _trains_candidates(config: schema.RunConfig, stage: stages.SampledStage) -> Iterator[problem.Problem]:
    if isinstance(stage, stages.PreferenceStage) and stage.ranked_by == "demonstrations":
        yield problem.Problem(
            key=KEY,
            reason="is `verbalized`, and self-play (ranked_by `demonstrations`) compares demonstrations with "
            "the policy's answers to the plain prompt",
            remedy="set it to `plain`, or rank by `verifier` or `model`",
        )
    if isinstance(stage, stages.StepLabelsStage):
        yield problem.Problem(
            key=KEY,
            reason="is `verbalized`, and step labels need answers to the plain prompt",
            remedy="set it to `plain`",
        )
    candidates, size = config.rollout.candidates, config.rollout.group_size
    if candidates > size:
        yield problem.Problem(
            key="rollout.candidates",
            reason=f"is {candidates}, and a group has {size} answers (rollout.group_size): the other "
            "candidates of a generation would be thrown away",
            remedy=f"set it to at most {size}, or raise rollout.group_size",
        )
