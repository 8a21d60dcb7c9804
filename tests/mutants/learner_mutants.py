"""Faults in a training step: counts, shaping, shares, memory, and the order of reads."""

from typing import Final

from mutants.mutant import LEARNER, Mutant

_STEP: Final = (
    "test_worked_step.py",
    "test_batch.py",
    "test_algorithm_in_a_step.py",
    "test_step.py",
)
_TOKEN_BASELINE: Final = ("test_token_baseline_step.py",)
_CLIP_COV: Final = ("test_clip_cov_step.py",)
_CRITIC: Final = ("test_critic.py",)
_SEGMENTS: Final = ("test_segments.py",)
_SOURCES: Final = ("test_sources.py",)


def _learner(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = _STEP) -> Mutant:
    return Mutant(name=name, file=file, old=old, new=new, tests=tests, part=LEARNER)


def _step(name: str, old: str, new: str, tests: tuple[str, ...] = _STEP) -> Mutant:
    return _learner(name, "training/step.py", old, new, tests)


def _rewards(name: str, old: str, new: str, tests: tuple[str, ...] = _STEP) -> Mutant:
    return _learner(name, "training/rewards.py", old, new, tests)


def _gradients(name: str, old: str, new: str, tests: tuple[str, ...] = _STEP) -> Mutant:
    return _learner(name, "training/gradients.py", old, new, tests)


def _advantages(name: str, old: str, new: str) -> Mutant:
    return _learner(name, "training/advantages.py", old, new)


def _constants(name: str, old: str, new: str) -> Mutant:
    return _learner(name, "training/row_constants.py", old, new)


def _batch(name: str, old: str, new: str) -> Mutant:
    return _learner(name, "batches/batch.py", old, new)


def _gauges(name: str, old: str, new: str) -> Mutant:
    return _learner(name, "training/loss_metrics.py", old, new, ("test_loss_gauges.py",))


LEARNER_MUTANTS: Final = (
    _step("step: rows for sequences", "sequences=len(totals.by_completion)", "sequences=len(rows)"),
    _step(
        "step: segments for completions",
        "sequences=len(totals.by_completion)",
        "sequences=len(sequences)",
        _SEGMENTS,
    ),
    _step(
        "step: prompts for sequences",
        "sequences=len(totals.by_completion)",
        "sequences=len(totals.by_group)",
    ),
    _step("step: sequences for prompts", "prompts=len(totals.by_group)", "prompts=len(sequences)"),
    _step("step: one token more", "tokens=totals.total", "tokens=1 + totals.total"),
    _gradients(
        "step: segments weigh by their own tokens",
        "completion_tokens_B=row.completion_tokens_B",
        "completion_tokens_B=None",
        _SEGMENTS,
    ),
    _gradients(
        "step: prompts of other rows",
        "prompt_tokens_B=row.prompt_tokens_B,",
        "prompt_tokens_B=minibatch.rows[0].prompt_tokens_B[:1].expand_as(row.prompt_tokens_B),",
    ),
    _step(
        "step: every minibatch is looked at after the update of the one before",
        "split(sequences, self._learner.minibatches)]",
        "split(sequences, 1)]",
    ),
    _gradients(
        "step: the bound of m2po is of the start",
        "updated = self.models, record.updates > 0",
        "updated = self.models, False",
    ),
    _gradients(
        "step: the ages of the version after",
        "row_staleness(row, version)",
        "row_staleness(row, version + 1)",
    ),
    _step(
        "step: the rate of the version before",
        "begin_step(version + 1)",
        "begin_step(version)",
    ),
    _gradients("step: corrections ignore the batch's bound", "m2po_limit=limit,", "m2po_limit=None,"),
    _step(
        "step: the entropy coefficient is the start's",
        "coefficient = self.memory.active_entropy(self._loss.entropy)\n        trace",
        "coefficient = self._loss.entropy.coefficient if self._loss.entropy else 0.0\n        trace",
    ),
    _rewards(
        "rewards: length with environment tokens",
        "[c.sampled for _, _, c in completions]",
        "[c.tokens for _, _, c in completions]",
    ),
    _rewards(
        "rewards: overlong with environment tokens",
        "max(sum(segment.mask) for",
        "max(len(segment.mask) for",
    ),
    _rewards("rewards: overlong without its factor", "weight=ramp.factor)", "weight=1.0)"),
    _rewards(
        "rewards: a component says something of a withheld answer",
        "self.total_B.isnan(), torch.nan,",
        "self.total_B.isnan(), 0.0,",
    ),
    _rewards(
        "rewards: withheld answers are 0", "return [math.nan] * len(weights)", "return [0.0] * len(weights)"
    ),
    _rewards("rewards: one baseline for all tasks", "group.prompt.task for", '"all" for'),
    _rewards("sources: one baseline for all sources", "group.prompt.source or ", "", _SOURCES),
    _rewards(
        "sources: an absent component applies", "completion.withheld or name in names", "True", _SOURCES
    ),
    _advantages(
        "advantages: equal answers each count in full",
        ".to(row.shares_B.device) * row.shares_B for",
        ".to(row.shares_B.device) for",
    ),
    _advantages(
        "advantages: the baseline after the batch",
        "baselines.of(rewards.keys, total), dtype",
        "baselines.after(rewards.keys, total, self._advantage.decay).of(rewards.keys, total), dtype",
    ),
    _advantages(
        "advantages: the KL is a bonus", "-models.ranks.sum(penalty_B)", "models.ranks.sum(penalty_B)"
    ),
    _advantages("advantages: the KL without its coefficient", "weight=kl.coefficient)", "weight=1.0)"),
    _advantages(
        "advantages: the KL of training answers only",
        "make_sequences(groups, Shaping())",
        "make_sequences(groups, self._shaping)",
    ),
    _advantages(
        "advantages: lengths are not passed on",
        "lengths=rewards.lengths_B,",
        "lengths=torch.ones_like(rewards.lengths_B),",
    ),
    _advantages("advantages: weights are not passed on", "weights=rewards.weights_N,", "weights=None,"),
    _advantages(
        "advantages: advantages in the order of the rows",
        "advantages_B[row.places_B.cpu()]",
        "advantages_B[: row.places_B.shape[0]]",
    ),
    _constants(
        "row constants: m2po by the logprobs of the start",
        'again = updated and spec.scope == "harmful"',
        "again = False",
    ),
    _learner(
        "row constants: m2po by advantages of other tokens",
        "training/minibatch.py",
        "advantages[row.sequence_ids_T]",
        "advantages[:1].expand(row.sequence_ids_T.shape)",
    ),
    _constants(
        "row constants: the largest instead of the least of the largest", ".values[-1])", ".values[0])"
    ),
    _batch(
        "batch: prompt tokens with the environment's",
        "by_group[sequence.group] += sequence.sampled",
        "by_group[sequence.group] += len(sequence.segment.mask)",
    ),
    _batch("batch: places without the withheld", "place += len(group.completions)", "place += len(members)"),
    _batch(
        "batch: shares of all answers",
        "duplicate_weights([c.content for _, c in members], shaping.duplicates)",
        "[1.0 / max(len(members), 1)] * len(members)",
    ),
    _batch("batch: equal answers do not share", "                share=share,\n", ""),
    _batch("batch: minibatches overlap", "if part_of[s.group] == part]", "if part_of[s.group] <= part]"),
    _batch("batch: truncated answers train", "and not overlong", ""),
    _learner(
        "critic advantages: equal answers each count in full",
        "training/critic_advantages.py",
        "each.advantages_T * row.shares_B[row.sequence_ids_T]",
        "each.advantages_T * 1.0",
        _CRITIC,
    ),
    _learner(
        "critic advantages: the KL is a bonus",
        "training/critic_advantages.py",
        "reward_T - reward_penalty(",
        "reward_T + reward_penalty(",
        _CRITIC,
    ),
    _learner(
        "critic advantages: a truncated answer is never bootstrapped",
        "training/critic_advantages.py",
        "cut_B[places_B].to(values.after_B)",
        "0 * cut_B[places_B].to(values.after_B)",
        _CRITIC,
    ),
    _learner(
        "rows: logprobs with the environment's",
        "batches/rows.py",
        "self.logprobs.append(segment.logprobs[t])",
        "self.logprobs.append(segment.logprobs[len(self.logprobs) % len(segment.mask)])",
    ),
    _learner(
        "rows: predicted by itself", "batches/rows.py", "start + t - 1 if t else", "start + t if t else"
    ),
    _learner(
        "record: losses are added",
        "training/record.py",
        "loss=sum(self.losses) / len(self.losses)",
        "loss=sum(self.losses)",
    ),
    _learner(
        "optimal_token: rho upside down",
        "training/token_baseline.py",
        "constants.old_T - row.rollout_logprobs_T",
        "row.rollout_logprobs_T - constants.old_T",
        _TOKEN_BASELINE,
    ),
    _learner(
        "optimal_token: equal answers each count in full",
        "training/token_baseline.py",
        "* row.shares_B[row.sequence_ids_T]",
        "* 1.0",
        _TOKEN_BASELINE,
    ),
    _learner(
        "optimal_token: the sharper pass is at temperature 0.5",
        "training/forward.py",
        "temperature=self._temperature / 2",
        "temperature=0.5",
        _TOKEN_BASELINE,
    ),
    _learner(
        "steps: equal answers each count in full",
        "training/step_rewards.py",
        "advantage_K[step_T].to(row.shares_B.device) * row.shares_B[row.sequence_ids_T]",
        "advantage_K[step_T].to(row.shares_B.device)",
        ("test_step_rewards.py",),
    ),
    _learner(
        "clip_cov: a share of the tokens between the bounds",
        "training/covariance_tokens.py",
        "int(spec.share * tokens)",
        "int(spec.share * drawn_N.numel())",
        _CLIP_COV,
    ),
    _learner(
        "covariance: around an advantage of 0",
        "training/covariance_tokens.py",
        "mean(logprobs), mean(advantages)",
        "mean(logprobs), 0.0",
        _CLIP_COV,
    ),
    _step("clip_cov: every step draws the same", "seed=version)", "seed=0)", _CLIP_COV),
    _gauges("gauges: tokens without advantage are left out", ', "zero": "_zero"}', "}"),
    _gauges(
        "gauges: the mean for the sum",
        'trained * values.get(f"{mean}{suffix}", 0.0) if',
        'values.get(f"{mean}{suffix}", 0.0) if',
    ),
    _gauges(
        "gauges: the mean for the mean of squares",
        '"bounded_ratio_squared_sum": "mean_ratio_sq"',
        '"bounded_ratio_squared_sum": "mean_ratio"',
    ),
    _gauges(
        "gauges: shares of all ages",
        'trained * values.get(f"{share}{suffix}", 0.0), **labels)',
        'values.get(f"{share}{suffix}", 0.0), **labels)',
    ),
)
