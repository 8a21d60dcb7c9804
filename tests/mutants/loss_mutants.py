"""Faults in what stands around the objectives: corrections, regularisers, weights, the sum, its metrics."""

from typing import Final

from mutants.mutant import Mutant

_LOSS: Final = ("test_policy_loss.py", "test_loss_properties.py", "test_extremes.py", "test_mutant_gaps.py")
_GATES: Final = ("test_gates.py",)
_PARTS: Final = ("test_parts.py", "test_mutant_gaps.py")
_LAYOUT: Final = ("test_layout.py", "test_parts.py")
_CORRECTIONS: Final = ("test_corrections.py", "test_extremes.py", "test_mutant_gaps.py")
_REGULARIZERS: Final = (
    "test_regularizers.py",
    "test_kl_enumeration.py",
    "test_extremes.py",
    "test_mutant_gaps.py",
)
_WEIGHTS: Final = ("test_aggregation.py", "test_policy_loss.py", "test_loss_properties.py")
_METRICS: Final = (
    "test_loss_metrics.py",
    "test_objectives.py",
    "test_corrections.py",
    "test_extremes.py",
    "test_mutant_gaps.py",
)


def _loss(name: str, old: str, new: str, tests: tuple[str, ...] = _LOSS) -> Mutant:
    return Mutant(name=name, file="loss_parts.py", old=old, new=new, tests=tests)


def _entropy(name: str, old: str, new: str, tests: tuple[str, ...] = _REGULARIZERS) -> Mutant:
    return Mutant(name=name, file="loss.py", old=old, new=new, tests=tests)


def _inputs(name: str, old: str, new: str, tests: tuple[str, ...] = _LOSS) -> Mutant:
    return Mutant(name=name, file="inputs.py", old=old, new=new, tests=tests)


def _layout(name: str, old: str, new: str, tests: tuple[str, ...] = _LAYOUT) -> Mutant:
    return Mutant(name=name, file="layout.py", old=old, new=new, tests=tests)


def _correction(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="corrections.py", old=old, new=new, tests=_CORRECTIONS)


def _regularizer(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="regularizers.py", old=old, new=new, tests=_REGULARIZERS)


def _weight(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="aggregation.py", old=old, new=new, tests=_WEIGHTS)


def _metric(name: str, file: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file=file, old=old, new=new, tests=_METRICS)


LOSS_MUTANTS: Final = (
    _loss("loss: maximised", "value_T = -policy_T *", "value_T = policy_T *"),
    _loss("loss: the gradient goes up", "slope_T = -policy_T *", "slope_T = policy_T *"),
    _loss(
        "loss: A left out of the gradient",
        "objective.weight_T * tokens.advantages_T",
        "objective.weight_T",
    ),
    _loss(
        "loss: mean for the sum",
        "tokens.keep(value_T).sum(",
        "tokens.keep(value_T).mean(",
    ),
    _loss(
        "loss: over-age tokens train",
        "slope_T=tokens.keep(slope_T),",
        "slope_T=tokens.layout.keep(slope_T),",
    ),
    _loss(
        "gates: corrections are left out",
        "gates_T = objective.weight_T if correction_T is None else objective.weight_T * correction_T",
        "gates_T = objective.weight_T",
        _GATES,
    ),
    _loss(
        "gates: tokens over age have one",
        "gates_T=tokens.keep(gates_T),",
        "gates_T=tokens.layout.keep(gates_T),",
        _GATES,
    ),
    _loss(
        "gates: the sides are exchanged",
        "objective.clipped_high_T.to(torch.int8) - objective.clipped_low_T.to(torch.int8)",
        "objective.clipped_low_T.to(torch.int8) - objective.clipped_high_T.to(torch.int8)",
        _GATES,
    ),
    _loss(
        "loss: an infinite logprob is hidden",
        "value_T = value_T + 0 * tokens.logprobs_T",
        "value_T = value_T + 0",
    ),
    _loss(
        "loss: the correction weighs the KL term, too",
        "slope_T + weight_T * term.slope_T",
        "slope_T + policy_T * term.slope_T",
        _REGULARIZERS,
    ),
    _loss(
        "loss: the correction weighs the KL value, too",
        "value_T + weight_T * term.value_T",
        "value_T + policy_T * term.value_T",
        _REGULARIZERS,
    ),
    _loss(
        "loss: no slope of the regularisers", "slope_T + weight_T * term.slope_T", "slope_T", _REGULARIZERS
    ),
    _loss(
        "loss: the last correction replaces the others",
        "c_T if correction_T is None else correction_T * c_T",
        "c_T",
        _CORRECTIONS,
    ),
    _inputs(
        "inputs: corrections from the drift, not rho",
        "prox_T - mu_T if needs_prox and",
        "drift_T if needs_prox and",
        _CORRECTIONS,
    ),
    _loss("loss: selection ignored", "None if tokens.selected_T is None else", "None if True else"),
    _loss(
        "loss: KL to the policy of the reference, reversed",
        "kl_term(loss.kl, tokens.log_ratio_ref_T,",
        "kl_term(loss.kl, -tokens.log_ratio_ref_T,",
        _REGULARIZERS,
    ),
    _entropy("entropy: a punishment", "factor = -coefficient", "factor = coefficient"),
    _entropy("entropy: over sequences", "max(counts.tokens, 1)", "max(counts.sequences, 1)"),
    _entropy(
        "entropy: over-age tokens count",
        "(factor * summed.trained_T).to(total)",
        "(factor * microbatch.mask_T).to(total)",
        ("test_mutant_gaps.py",),
    ),
    _loss(
        "parts: weights of the first sequences",
        "weight_B[part.sequences]",
        "weight_B[: part.sequences.stop - part.sequences.start]",
        _PARTS,
    ),
    _loss(
        "parts: the value of the last",
        "value, slope_T[part.tokens] = value + summed.value,",
        "value, slope_T[part.tokens] = summed.value,",
        _PARTS,
    ),
    _loss(
        "parts: m2po finds its bound in each",
        "limit = _whole_limit(loss, microbatch) if limit is None else limit",
        "limit = limit",
        _PARTS,
    ),
    _loss(
        "metrics: kl_ref the other way",
        "ratios.k3(-ratios.bounded(ref_T))",
        "ratios.k3(ratios.bounded(ref_T))",
        _METRICS,
    ),
    _loss(
        "metrics: kl_rollout the other way",
        "ratios.k3(ratios.bounded(drift_T))",
        "ratios.k3(-ratios.bounded(drift_T))",
        _METRICS,
    ),
    _loss(
        "metrics: sequences that keep a token count as dropped",
        "(kept_B == 0)",
        "(kept_B < trained_B)",
        _METRICS,
    ),
    Mutant(
        name="sloped: the gradient from above is lost",
        file="sloped.py",
        old="(gradient * slope_T)",
        new="(torch.ones_like(gradient) * slope_T)",
        tests=(*_PARTS, *_LOSS),
    ),
    _inputs(
        "inputs: anchors swapped", '{"rollout": mu_T, "batch": prox_T', '{"rollout": prox_T, "batch": mu_T'
    ),
    _inputs("inputs: the ratio upside down", "else l_T - anchor_T,", "else anchor_T - l_T,"),
    _inputs(
        "inputs: rho upside down", "log_rho_T=prox_T - mu_T if", "log_rho_T=mu_T - prox_T if", _CORRECTIONS
    ),
    _inputs(
        "inputs: junk under the mask in the anchor",
        "layout.keep(value_T.detach().to(l_T))",
        "value_T.detach().to(l_T)",
    ),
    _inputs(
        "inputs: junk under the mask in the logprobs",
        "l_T = layout.keep(wide(microbatch.logprobs_T.detach()))",
        "l_T = wide(microbatch.logprobs_T.detach())",
    ),
    _inputs(
        "inputs: half precision stays",
        "logprobs if logprobs.dtype == torch.float64 else logprobs.float()",
        "logprobs",
    ),
    _inputs("inputs: over-age tokens leave the mask", "mask_T & ~over_age_mask(", "mask_T & over_age_mask("),
    _layout(
        "layout: lengths of all tokens",
        "segment_sum(mask_T.double(),",
        "segment_sum(torch.ones_like(mask_T).double(),",
        (*_LOSS, *_WEIGHTS),
    ),
    _layout("layout: every token counts", "return self.counted == self.tokens", "return True", _LOSS),
    _layout("layout: a part counts the tokens before it", "after.counted - first.counted", "after.counted"),
    _layout(
        "layout: a part has the tokens in the mask after its first",
        "counted_T[start_P] - mask_T[start_P].int()",
        "counted_T[start_P]",
    ),
    _inputs(
        "inputs: one_minus_ref is ref",
        "A_T * -torch.expm1(ref_T)",
        "A_T * ref_T.exp()",
        ("test_mutant_gaps.py",),
    ),
    _layout(
        "parts: cut inside a sequence",
        "torch.searchsorted(ids_T, ids_T[part::part].contiguous())",
        "torch.arange(part, ids_T.shape[0], part)",
    ),
    _layout(
        "parts: a sequence at the cut is lost",
        "slice(first.sequence, after.sequence)",
        "slice(first.sequence, after.sequence - 1)",
    ),
    _layout(
        "parts: ids do not start at 0",
        "self.sequence_ids_T[tokens] - first.sequence",
        "self.sequence_ids_T[tokens]",
    ),
    _correction(
        "tis: a floor for the cap",
        "_rho(spec.level, tokens, log_rho_T).clamp(max=spec.cap)",
        "_rho(spec.level, tokens, log_rho_T).clamp(min=spec.cap)",
    ),
    _correction("mis: the outside trains", "weight_T * _inside(rho_T", "weight_T * ~_inside(rho_T"),
    _correction("mis: one for the ratio", 'spec.mask_weight == "ratio"', 'spec.mask_weight == "one"'),
    _correction("icepop: weight 1", "return rho_T * _inside(", "return 1.0 * _inside("),
    _correction(
        "icepop: by the sequence",
        '_rho("token", tokens, log_rho_T)\n    return rho_T',
        '_rho("geometric", tokens, log_rho_T)\n    return rho_T',
    ),
    _correction(
        "geometric rejection: by the product", '_inside(_rho("geometric",', '_inside(_rho("sequence",'
    ),
    _correction(
        "geometric rejection: weight of the sequence",
        '_rho("token", tokens, log_rho_T)\n    return (rho_T if',
        '_rho("geometric", tokens, log_rho_T)\n    return (rho_T if',
    ),
    _correction(
        "corrections: mean for the product",
        'over = tokens.sequence_sum if level == "sequence"',
        'over = tokens.sequence_mean if level == "sequence"',
    ),
    _correction(
        "corrections: the product is not bounded", "bounded(over(log_rho_T)).exp()", "over(log_rho_T).exp()"
    ),
    _correction(
        "corrections: the band is open below", "(rho_T >= (low or 0.0)) & (rho_T <= high)", "rho_T <= high"
    ),
    _correction(
        "corrections: the band is open above",
        "(rho_T >= (low or 0.0)) & (rho_T <= high)",
        "rho_T >= (low or 0.0)",
    ),
    Mutant(
        name="kl_cov: every token is held",
        file="regularizers.py",
        old="z_T.abs() * held_T",
        new="z_T.abs()",
        tests=("test_covariance.py",),
    ),
    Mutant(
        name="kl_cov: a slope of one sign",
        file="regularizers.py",
        old="spec.coefficient * z_T.sign() * moves_T",
        new="spec.coefficient * moves_T",
        tests=("test_covariance.py",),
    ),
    Mutant(
        name="optimal_token: energy without the sum of squares",
        file="token_baseline.py",
        old=" + (2 * l_T - sharper_T).exp()",
        new="",
        tests=("test_token_baseline.py",),
    ),
    Mutant(
        name="optimal_token: ratios not squared",
        file="token_baseline.py",
        old="rho_T.square() * energies",
        new="rho_T * energies",
        tests=("test_token_baseline.py",),
    ),
    Mutant(
        name="optimal_token: weights not accumulated",
        file="token_baseline.py",
        old="return sum_T - (sum_T - step_T)[first_T]",
        new="return step_T",
        tests=("test_token_baseline.py",),
    ),
    Mutant(
        name="covariance: not centred",
        file="covariance.py",
        old="double() - means[1]",
        new="double()",
        tests=("test_covariance.py",),
    ),
    _correction(
        "outlier_tokens: drops the token alone",
        "return tokens.of_token(tokens.sequence_sum(outlier_T.to(drift_T)) == 0).to(drift_T)",
        "return (~outlier_T).to(drift_T)",
    ),
    _correction(
        "outlier_tokens: by the logprobs of the start of the batch",
        'if spec.reads == "drift" else log_rho_T',
        'if spec.kind == "opsm" else log_rho_T',
    ),
    _correction(
        "opsm: by the logprobs of the start of the batch",
        'if spec.reads == "drift" else log_rho_T',
        'if spec.kind == "outlier_tokens" else log_rho_T',
    ),
    Mutant(
        name="distillation: a rest at its floor still moves",
        file="distillation.py",
        old="rest_T > LEAST_REST",
        new="rest_T > -1",
        tests=("test_distillation.py",),
    ),
    _correction(
        "opsm: drops positive sequences",
        "sequence_mean(tokens.advantages_T) < 0",
        "sequence_mean(tokens.advantages_T) > 0",
    ),
    _correction(
        "opsm: the drift the other way",
        "-tokens.sequence_mean(drift_T) > spec.delta",
        "tokens.sequence_mean(drift_T) > spec.delta",
    ),
    _correction(
        "opsm: drift of the sum", "-tokens.sequence_mean(drift_T) >", "-tokens.sequence_sum(drift_T) >"
    ),
    _correction(
        "m2po: harmless tokens count", "(advantages_T > 0) & (z_T > 0)", "(advantages_T > 0) & (z_T < 0)"
    ),
    _correction("m2po: drops harmless tokens, too", "~(_harmful(z_T, advantages_T) & (", "~(("),
    _correction(
        "m2po: clip ends swapped", "(r_T > 1 + high) | (r_T < 1 - low)", "(r_T > 1 + low) | (r_T < 1 - high)"
    ),
    _correction(
        "m2po: the tighter bound counts",
        "high = max(math.expm1(limit) if",
        "high = min(math.expm1(limit) if",
    ),
    _correction("m2po: first moment", "square_N = size_N.square_()", "square_N = size_N"),
    _correction(
        "m2po: trimmed mean over all",
        "size_N.square().cumsum(0) / rank_N",
        "size_N.square().cumsum(0) / size_N.numel()",
    ),
    _correction("m2po: ties are cut in two", "fits_N & last_of_ties_N", "fits_N"),
    _regularizer("k2: not halved", "0.5 * d_T.square(), d_T", "d_T.square(), d_T"),
    _regularizer("k2: slope upside down", "d_T.square(), d_T * moves_T", "d_T.square(), -d_T * moves_T"),
    _regularizer("k3: of the inverse ratio", "k3_T = k3(-d_T)", "k3_T = k3(d_T)"),
    _regularizer(
        "k3: slope upside down", "k3_T, -torch.expm1(-d_T) * moves_T", "k3_T, torch.expm1(-d_T) * moves_T"
    ),
    _regularizer(
        "k3_unbiased: no gradient through the ratio",
        "c_T * d_T * moves_T",
        "-c_T * torch.expm1(-d_T) * moves_T",
    ),
    _regularizer(
        "k3_unbiased: without the ratio", "value_T, slope_T = c_T * k3_T,", "value_T, slope_T = k3_T,"
    ),
    _regularizer("k3_unbiased: without its cap", ".exp().clamp(max=spec.resolved_cap)", ".exp()"),
    _regularizer(
        "regularisers: slope past the clamp",
        "log_ratio_ref_T.abs() <= LOG_RATIO_LIMIT",
        "log_ratio_ref_T.abs() >= 0",
    ),
    _regularizer("drift: slope not doubled", "slope_T=2 * spec.coefficient", "slope_T=spec.coefficient"),
    _regularizer(
        "reward penalty: a bonus",
        "bounded(rollout_logprobs.detach() - ref_logprobs.detach())",
        "bounded(ref_logprobs.detach() - rollout_logprobs.detach())",
    ),
    _regularizer(
        "reward penalty: environment tokens pay",
        "torch.where(mask.bool(), coefficient * k1_T, 0.0)",
        "coefficient * k1_T",
    ),
    _regularizer(
        "reward penalty: no stop-gradient",
        "bounded(rollout_logprobs.detach() - ref_logprobs.detach())",
        "bounded(rollout_logprobs - ref_logprobs)",
    ),
    _regularizer(
        "entropy: adapts the wrong way",
        "spec.step if mean_entropy <= spec.target",
        "spec.step if mean_entropy > spec.target",
    ),
    _regularizer("entropy: below 0", "max(0.0, coefficient + step)", "coefficient + step"),
    _regularizer(
        "entropy: on above the target",
        "mean_entropy <= spec.target else 0.0",
        "mean_entropy >= spec.target else 0.0",
    ),
    _regularizer(
        "terms: the last one only",
        "value_T + term.value_T, slope_T + term.slope_T",
        "term.value_T, term.slope_T",
    ),
    Mutant(
        name="ratios: k3 with the wrong sign of the log",
        file="ratios.py",
        old="torch.expm1(log_ratio_T) - log_ratio_T",
        new="torch.expm1(log_ratio_T) + log_ratio_T",
        tests=_REGULARIZERS,
    ),
    Mutant(
        name="ratios: bounded above only",
        file="ratios.py",
        old="log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)",
        new="log_ratio.clamp(max=LOG_RATIO_LIMIT)",
        tests=("test_extremes.py", *_LOSS),
    ),
    _weight(
        "token_mean: over sequences",
        "torch.full_like(length_B, counts.tokens)",
        "torch.full_like(length_B, counts.sequences)",
    ),
    _weight("seq_mean_token_mean: no length", "return sequences_B * length_B", "return sequences_B"),
    _weight(
        "token_sum_norm: by the length",
        "return sequences_B * spec.max_tokens",
        "return sequences_B * length_B",
    ),
    _weight(
        "prompt_mean: over sequences", "return counts.prompts * _prompt", "return counts.sequences * _prompt"
    ),
    _weight(
        "prompt_mean: tokens of the sequence",
        "prompt_tokens_B = prompt_S[group_B]",
        "prompt_tokens_B = length_B",
    ),
    _weight("counts: empty sequences count", "(length_B > 0).sum()", "(length_B >= 0).sum()"),
    _weight("counts: empty prompts count", "(prompt_S > 0).sum()", "group_B.max() + 1"),
    _weight("counts: passed ones are ignored", "if counts is None else counts", "if True else counts"),
    _weight(
        "weights: tokens outside the mask weigh",
        "weight_T if layout.is_full else weight_T * layout.mask_T",
        "weight_T",
    ),
    _weight("counts: prompts out of order", "scatter_(0, order_B, ", "copy_("),
    Mutant(
        name="segments: mean over all",
        file="segments.py",
        old="segments) / count_S.clamp(min=1)",
        new="segments) / count_S.sum().clamp(min=1)",
        tests=_LOSS,
    ),
    Mutant(
        name="staleness: a token at the limit is dropped",
        file="staleness.py",
        old="return staleness_T > max_staleness",
        new="return staleness_T >= max_staleness",
        tests=("test_token_staleness.py", *_LOSS),
    ),
    _metric(
        "metrics: over-age tokens in the sums",
        "tally.py",
        "torch.where(trained_T, cell_T, CELLS)",
        "torch.where(mask_T, cell_T, CELLS)",
    ),
    _metric(
        "metrics: tokens under the mask",
        "tally.py",
        "torch.where(mask_T, cell_T, CELLS)",
        "torch.where(mask_T | True, cell_T, CELLS)",
    ),
    _metric(
        "metrics: effective weight without c", "tally.py", '"weight": c_T * weight_T', '"weight": weight_T'
    ),
    _metric(
        "metrics: ends swapped",
        "tally.py",
        "surrogate.clipped_low_T,\n        surrogate.clipped_high_T",
        "surrogate.clipped_high_T,\n        surrogate.clipped_low_T",
    ),
    _metric(
        "metrics: dropped tokens have a gradient",
        "tally.py",
        "else without_gradient_T | dropped_T",
        "else without_gradient_T",
    ),
    _metric(
        "metrics: sign of the advantage",
        "metrics.py",
        '"_positive": slice(2, 3), "_negative": slice(0, 1)',
        '"_positive": slice(0, 1), "_negative": slice(2, 3)',
    ),
    _metric("metrics: no advantage is a negative one", "metrics.py", "slice(1, 2)}", "slice(0, 1)}"),
    _metric(
        "metrics: maxima are added", "metrics.py", 'frozenset({"max_ratio", "given"})', 'frozenset({"given"})'
    ),
    _metric(
        "metrics: ess not squared", "metrics.py", '_share(value["ratio"] ** 2,', '_share(value["ratio"],'
    ),
    _metric(
        "metrics: shares of all tokens",
        "metrics.py",
        '_share(flag[f"clipped_{end}"], trained)',
        '_share(flag[f"clipped_{end}"], tokens)',
    ),
    _metric("metrics: median for p99", "metrics.py", '"p99_ratio": 0.99', '"p99_ratio": 0.5'),
    _metric(
        "metrics: a quantile above its bin",
        "metrics.py",
        "(place_Q - BINS // 2)",
        "(place_Q + 1 - BINS // 2)",
    ),
)
