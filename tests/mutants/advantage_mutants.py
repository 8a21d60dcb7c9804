"""Faults in the advantages, the estimator of the critic and data shaping."""

from typing import Final

from mutants.mutant import Mutant

_ADVANTAGES: Final = ("test_advantages.py", "test_advantages_properties.py")
_SOURCES: Final = ("test_sources.py",)
_GAE: Final = ("test_gae.py",)
_CRITIC: Final = ("test_critic.py",)
_SHAPING: Final = ("test_shaping.py", "test_shaping_diversity.py")


def _advantage(name: str, file: str, old: str, new: str, tests: tuple[str, ...] = _ADVANTAGES) -> Mutant:
    return Mutant(name=name, file=f"advantages/{file}", old=old, new=new, tests=tests)


def _gae(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="generalized_advantage.py", old=old, new=new, tests=_GAE)


def _by_step(name: str, old: str, new: str) -> Mutant:
    return _advantage(f"by step: {name}", "process.py", old, new, ("test_process_advantages.py",))


def _critic(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="critic.py", old=old, new=new, tests=_CRITIC)


def _shaping(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file=f"shaping/{file}", old=old, new=new, tests=_SHAPING)


ADVANTAGE_MUTANTS: Final = (
    _by_step(
        "grpo does not sum up",
        "scaled_K, 0.0), rewards.completions_K, 1.0)",
        "scaled_K, 0.0), rewards.completions_K, 0.0)",
    ),
    _by_step("rloo keeps itself in", "(sum_S[group_B] - mean_B)", "sum_S[group_B]"),
    _by_step("rloo sums the steps of the others", " / torch.bincount(id_K, minlength=sequences)", ""),
    _by_step("reinforce_pp counts steps", "rewards.tokens_K.double())", "1.0)"),
    _by_step(
        "the outcome is on the first step",
        "index_add(0, self.last_B, self.outcomes_B",
        "index_add(0, self.last_B * 0, self.outcomes_B",
    ),
    _by_step(
        "a step ends before its last token",
        "stride + positions_T.clamp(max=stride - 1))",
        "stride + positions_T.clamp(max=stride - 1), right=True)",
    ),
    _by_step("a completion alone is compared", "(scored_S > 1)", "(scored_S > 0)"),
    _advantage(
        "grpo: multiplied by the deviation",
        "group.py",
        "centred.value_N / (centred.std_N(spec.ddof) +",
        "centred.value_N * (centred.std_N(spec.ddof) +",
    ),
    _advantage("grpo: always ddof 0", "centre.py", "(self.scored_S - ddof)", "(self.scored_S - 0 * ddof)"),
    _advantage(
        "grpo: no epsilon",
        "group.py",
        "(centred.std_N(spec.ddof) + spec.epsilon)",
        "centred.std_N(spec.ddof).clamp(min=1e-30)",
    ),
    _advantage(
        "dr_grpo: leaves itself out",
        "group.py",
        "return completions.centred().value_N",
        "return completions.centred().leave_one_out_N()",
    ),
    _advantage(
        "rloo: keeps itself in",
        "group.py",
        "return centred.leave_one_out_N()\n",
        "return centred.value_N\n",
    ),
    _advantage(
        "rloo: scaled by the spread with ddof 0",
        "group.py",
        "centred.std_N(1) + group_advantage.RLOO_EPSILON",
        "centred.std_N(0) + group_advantage.RLOO_EPSILON",
    ),
    _advantage(
        "rloo: (G - 1) / G",
        "centre.py",
        "self.scored_S / (self.scored_S - 1).clamp(min=1)",
        "(self.scored_S - 1) / self.scored_S.clamp(min=1)",
    ),
    _advantage(
        "centre: the mean is added", "centre.py", "reward_N - mean_S[group_N]", "reward_N + mean_S[group_N]"
    ),
    _advantage(
        "centre: equal rewards keep their rounding", "centre.py", "known_N & contrast_S[group_N]", "known_N"
    ),
    _advantage(
        "centre: withheld ones count in the mean",
        "centre.py",
        "segment_sum(known_N.to(torch.float64), group_N, groups)",
        "segment_sum(torch.ones_like(reward_N), group_N, groups)",
    ),
    _advantage(
        "centre: a lone scored one is compared", "centre.py", "known_N & (scored_S > 1)[group_N]", "known_N"
    ),
    _advantage(
        "maxrl: where the mean is negative, too",
        "group.py",
        "positive_B = mean_B > EQUAL_REWARDS",
        "positive_B = mean_B.abs() > EQUAL_REWARDS",
    ),
    _advantage(
        "maxrl: not divided", "group.py", "centred.value_N / mean_B.where(positive_B, 1.0)", "centred.value_N"
    ),
    _advantage(
        "opo: baseline not by length",
        "group.py",
        "segment_sum(length_B * centred.value_N,",
        "segment_sum(centred.value_N,",
    ),
    _advantage(
        "opo: withheld lengths count",
        "group.py",
        'torch.where(centred.compared_N, completions.lengths_for("opo"), 0.0)',
        'completions.lengths_for("opo")',
    ),
    _advantage("gopo: worst first", "group.py", "descending=True", "descending=False"),
    _advantage("gopo: half the range", "group.py", "spec.high * (size_K", "0.5 * spec.high * (size_K"),
    _advantage(
        "gopo: quantiles of Hazen", "group.py", "2 * rank_K) / (size_K + 0.25)", "2 * rank_K) / size_K"
    ),
    _advantage("gopo: quantiles of ranks from 0", "group.py", "erfinv((size_K + 1 - 2", "erfinv((size_K - 2"),
    _advantage(
        "gopo: ties in their order",
        "group.py",
        "rank_K = _average_over_ties(rank_K, reward_B[order_K], group_K)",
        "pass",
    ),
    _advantage("gopo: ties across groups", "group.py", " | (torch.diff(group_K) != 0)", ""),
    _advantage(
        "batch_scaled: centre of the batch",
        "batch.py",
        'centred.value_N if spec.center == "group"',
        'centred.value_N if spec.center == "batch"',
    ),
    _advantage(
        "batch_scaled: the other deviation", "batch.py", 'spec.std_of == "centred"', 'spec.std_of == "raw"'
    ),
    _advantage("batch: ddof 0", "batch.py", "(count_B.sum() - 1).clamp(min=1)", "count_B.sum().clamp(min=1)"),
    _advantage(
        "reinforce_pp: without the batch mean",
        "batch.py",
        "value_B if mean_is_zero else deviation(value_B, count_B)",
        "value_B",
    ),
    _advantage(
        "reinforce_pp: never the group mean", "batch.py", "    if spec.group_mean:\n", "    if False:\n"
    ),
    _advantage(
        "reinforce_pp: tokens do not weigh",
        "batch.py",
        'count_B = count_B * completions.lengths_for("reinforce_pp with weighting token")',
        "pass",
    ),
    _advantage("gdpo: no batch normalisation", "batch.py", "if not spec.final_batch_norm:", "if True:"),
    _advantage(
        "gdpo: components not weighed",
        "batch.py",
        ".view(-1, components) * completions.weight_N)",
        ".view(-1, components) * 1.0)",
    ),
    _advantage(
        "gdpo: one group for all components",
        "batch.py",
        "completions.group_B.unsqueeze(1) * components + torch.arange(components)",
        "completions.group_B.unsqueeze(1) * components + 0 * torch.arange(components)",
    ),
    _advantage(
        "rewards: components not weighed",
        "completions.py",
        "component_sum(self.reward_BN * self.weight_N)",
        "component_sum(self.reward_BN)",
    ),
    _advantage(
        "sources: what does not apply counts",
        "completions.py",
        "torch.where(applies_BN, reward_BN, 0.0)",
        "reward_BN",
        _SOURCES,
    ),
    _advantage(
        "ema: the baseline is added",
        "history.py",
        "reward_B - completions.baselines_for",
        "reward_B + completions.baselines_for",
    ),
    _advantage("mixed: lam the other way", "history.py", "(1 - lam_B) * past_B", "lam_B * past_B"),
    _advantage(
        "mixed: shrinks the wrong way",
        "history.py",
        "others_B / (others_B + spec.prior)",
        "spec.prior / (others_B + spec.prior)",
    ),
    _advantage(
        "mixed: the group counts itself", "history.py", "(centred.scored_S - 1)[", "centred.scored_S["
    ),
    Mutant(
        name="baselines: decay the other way",
        file="baselines.py",
        old="mean + decay * (self.averages[key] - mean)",
        new="self.averages[key] + decay * (mean - self.averages[key])",
        tests=("test_baselines.py",),
    ),
    Mutant(
        name="baselines: start at 0",
        file="baselines.py",
        old="if key in self.averages else mean",
        new="if key in self.averages else (1 - decay) * mean",
        tests=("test_baselines.py",),
    ),
    _gae("gae: the value is added", "after_B) - value_M", "after_B) + value_M"),
    _gae("gae: no discount of the next value", "gamma * _next_values(", "1.0 * _next_values("),
    _gae(
        "gae: lam left out",
        "segment_discounted_sum(delta_M, id_M, gamma * lam)",
        "segment_discounted_sum(delta_M, id_M, gamma)",
    ),
    _gae("gae: the next sequence's value", "last_M[:-1] = id_M[1:] != id_M[:-1]", "last_M[:-1] = False"),
    _gae(
        "gae: no bootstrap",
        "torch.where(last_M, after_B[id_M], value_M.roll(-1))",
        "torch.where(last_M, 0.0, value_M.roll(-1))",
    ),
    _gae("gae: the return is the advantage", "_unpack(advantage_M + value_M,", "_unpack(advantage_M,"),
    _critic("value loss: the smaller of the two", "torch.maximum(plain_T", "torch.minimum(plain_T"),
    _critic(
        "value loss: clipped around the return",
        "clamp(old_T - clip_range, old_T + clip_range)",
        "clamp(return_T - clip_range, return_T + clip_range)",
    ),
    _critic(
        "value loss: a gradient where it is clipped",
        "torch.where(by_clip_T, 0.0, v_T - return_T)",
        "(v_T - return_T)",
    ),
    _critic("value loss: not halved", "0.5 * torch.maximum", "1.0 * torch.maximum"),
    _critic(
        "value loss: divided by the mask's tokens",
        "tokens = int(mask_T.sum()) if counts is None else counts.tokens",
        "tokens = int(mask_T.sum())",
    ),
    _critic(
        "explained variance: of the values as they are",
        "return_T, return_T - old_T)",
        "return_T, return_T - v_T)",
    ),
    _critic("explained variance: errors around 0", "error_square - error**2 / tokens", "error_square"),
    _critic(
        "rewards arrive at the first token", ".cumsum(0) - 1", ".cumsum(0) - torch.bincount(sequence_ids)"
    ),
    _critic("whitening: ddof 0", "0.0) / (count - 1)", "0.0) / count"),
    _critic("whitening: not centred", "(values.double() - mean)", "(values.double() - 0 * mean)"),
    Mutant(
        name="segments: the trace crosses sequences",
        file="segments.py",
        old="torch.where(together_M, total_N[step:], 0.0)",
        new="total_N[step:]",
        tests=_GAE,
    ),
    Mutant(
        name="segments: decay not squared",
        file="segments.py",
        old="2 * step, factor * factor",
        new="2 * step, factor",
        tests=_GAE,
    ),
    _shaping("overlong: a bonus", "overlong.py", "return -spec.factor *", "return spec.factor *"),
    _shaping(
        "overlong: floor the other way",
        "overlong.py",
        "min(1.0, excess) if spec.floor",
        "max(1.0, excess) if spec.floor",
    ),
    _shaping(
        "overlong: by the whole length", "overlong.py", "/ (spec.max_len - spec.safe_len)", "/ spec.max_len"
    ),
    _shaping(
        "duplicates: the last trains",
        "duplicates.py",
        "reversed(list(enumerate(sequences)))",
        "list(enumerate(sequences))",
    ),
    _shaping("duplicates: each counts in full", "duplicates.py", "1.0 / counts[ids]", "1.0 * counts[ids]"),
    _shaping(
        "variance: of the deviation from 0",
        "dynamic_sampling.py",
        "max(task_rewards_G) - min(task_rewards_G) >",
        "max(task_rewards_G) + min(task_rewards_G) >",
    ),
    _shaping(
        "pass rate: no decay",
        "difficulty.py",
        "correct=decay * self.correct + correct",
        "correct=self.correct + correct",
    ),
    _shaping(
        "goldilocks: asks the easy and the hard",
        "difficulty.py",
        "goldilocks.low <= rate <= goldilocks.high",
        "not goldilocks.low <= rate <= goldilocks.high",
    ),
    _shaping(
        "goldilocks: never again",
        "difficulty.py",
        "versions_since_seen >= goldilocks.reprobe_steps",
        "versions_since_seen < 0",
    ),
    _shaping(
        "buckets: by the wrong end",
        "difficulty.py",
        "bisect_right(buckets.thresholds, rate)",
        "-1 - bisect_right(buckets.thresholds, rate)",
    ),
    _shaping("buckets: weights not normalised", "difficulty.py", " / max(buckets.weights)", ""),
    _shaping(
        "adaptive group: easy prompts only", "difficulty.py", "math.log(max(p, 1.0 - p))", "math.log(p)"
    ),
    _shaping(
        "adaptive group: rounds down", "difficulty.py", "math.ceil(needed - 1e-9)", "math.floor(needed)"
    ),
    _shaping(
        "diversity: distinct over completions",
        "diversity.py",
        "len(different) / total if total",
        "len(different) / len(token_ids_G) if total",
    ),
    _shaping("diversity: duplicates upside down", "diversity.py", "return 1.0 - len({", "return len({"),
    _shaping(
        "diversity: groups without a meaning count as 0",
        "diversity.py",
        "[value for value in values if not math.isnan(value)]",
        "[0.0 if math.isnan(value) else value for value in values]",
    ),
    _shaping(
        "collapse: any of the three", "collapse.py", "watch.fallen == set(WATCHED)", "bool(watch.fallen)"
    ),
    _shaping(
        "collapse: when they rise",
        "collapse.py",
        "is_ < self.spec.share * was",
        "is_ > self.spec.share * was",
    ),
    _shaping(
        "collapse: the first window goes on",
        "collapse.py",
        "self.first if len(self.first) >= window else (*self.first, point)",
        "(*self.first, point)[-window:]",
    ),
)
