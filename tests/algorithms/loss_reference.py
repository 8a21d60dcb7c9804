"""A slow reference implementation of the policy loss: one float at a time, written from the formulas.

`loss` is the value; with `live` logprobs it is the function whose finite differences are the gradient, since
whatever a formula stops the gradient of reads the frozen logprob of the token. `gradient` is the closed form.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.algorithms.spec import (
    Aggregation,
    Cispo,
    Correction,
    Dppo,
    GeometricRejection,
    Gmpo,
    Gspo,
    GspoToken,
    IcePop,
    Ipo,
    Is,
    LossSpec,
    M2po,
    Mis,
    Objective,
    Opsm,
    OutlierTokens,
    Pg,
    PpoClip,
    RolloutIs,
    Rspo,
    Sapo,
    Tis,
    Topr,
    Vespo,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """All that is known about one token; trains is its mask."""

    logprob: float
    rollout: float
    old: float
    ref: float
    advantage: float
    trains: bool = True
    staleness: int = 0
    router_shift: float = 1.0
    entropy: float = 0.0
    selected: bool = True
    held: bool = False
    top_k: tuple[tuple[float, float], ...] = ()
    """Logprobs under pi and under mu of mu's top K tokens."""
    sampled: int | None = None
    """Which of them was sampled; None if it is not among them."""


class Sequence(NamedTuple):
    """One completion: its tokens and its prompt."""

    tokens: tuple[Token, ...]
    group: int = 0

    @property
    def trained(self) -> list[Token]:
        return [token for token in self.tokens if token.trains]


Batch = list[Sequence]


def clamp(value: float, low: float, high: float) -> float:
    return low if value < low else high if value > high else value


def safe_exp(log_value: float) -> float:
    return math.exp(clamp(log_value, -20.0, 20.0))


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def anchor(objective: Objective, token: Token) -> float:
    return token.old if getattr(objective, "anchor", "rollout") == "batch" else token.rollout


# Objectives: J of each token with the live logprobs in it, and g.


def bounds(objective: PpoClip | Cispo | RolloutIs | Gspo | GspoToken) -> tuple[float, float]:
    low = 0.0 if objective.clip_low is None else 1 - objective.clip_low
    return low, math.inf if objective.clip_high is None else 1 + objective.clip_high


def clipped_value(ratio: float, advantage: float, band: tuple[float, float], dual: float | None) -> float:
    value = min(ratio * advantage, clamp(ratio, *band) * advantage)
    return max(value, dual * advantage) if dual is not None and advantage < 0 else value


def clipped_weight(ratio: float, advantage: float, band: tuple[float, float], dual: float | None) -> float:
    if advantage > 0 and ratio > band[1]:
        return 0.0
    if advantage < 0 and (ratio < band[0] or (dual is not None and ratio > dual)):
        return 0.0
    return ratio * advantage


def kl_term(q: float, p: float) -> float:
    if q <= 0:
        return 0.0
    return math.inf if p <= 0 else q * math.log(q / p)


def divergence(objective: Dppo | Ipo, token: Token) -> float:
    """Distance of mu and pi over the sampled token and the rest, or over the top K too."""
    p, q = math.exp(token.logprob), math.exp(token.rollout)
    pairs = [(p, q)]
    if isinstance(objective, Dppo) and objective.needs_top_k:
        pairs = [(math.exp(a), math.exp(b)) for a, b in token.top_k]
        if token.sampled is None:
            pairs.append((p, q))
    pairs.append((max(0.0, 1 - sum(a for a, _ in pairs)), max(0.0, 1 - sum(b for _, b in pairs))))
    if isinstance(objective, Dppo) and objective.divergence.endswith("kl"):
        return sum(kl_term(b, a) for a, b in pairs)
    return sum(abs(a - b) for a, b in pairs) / 2


def stopped_weight(objective: Objective, token: Token) -> float:
    """The constant in front of A l, for objectives of one token that stop the gradient of their weight."""
    ratio, positive = safe_exp(token.logprob - anchor(objective, token)), token.advantage > 0
    match objective:
        case Pg():
            return 1.0
        case Cispo():
            masked_high = positive and objective.mask_high is not None and ratio > 1 + objective.mask_high
            negative = token.advantage < 0 and objective.mask_low is not None
            masked_low = negative and ratio < 1 - (objective.mask_low or 0.0)
            return 0.0 if masked_low or masked_high else clamp(ratio, *bounds(objective))
        case RolloutIs():
            low, high = bounds(objective)
            return ratio if low < ratio < high else 0.0
        case Topr():
            return 1.0 if positive else min(ratio, 1.0)
        case Ipo():
            return ratio if divergence(objective, token) <= objective.limit else 0.0
        case Dppo():
            low, high = objective.limits
            distance = divergence(objective, token)
            lost_high = positive and ratio > 1 and distance > high
            lost_low = token.advantage < 0 and ratio < 1 and distance > low
            return 0.0 if lost_high or lost_low else min(ratio, objective.cap or math.inf)
    raise AssertionError(objective)


def token_value(objective: Objective, token: Token, live: float) -> float:
    advantage, ratio = token.advantage, safe_exp(live - anchor(objective, token))
    match objective:
        case Is():
            return clipped_value(ratio, advantage, (0.0, math.inf), objective.dual_clip)
        case PpoClip():
            return clipped_value(ratio, advantage, bounds(objective), objective.dual_clip)
        case Sapo():
            tau = objective.tau_pos if advantage > 0 else objective.tau_neg
            exponent = -tau * (ratio - 1)
            sigmoid = 0.0 if exponent > 700 else 1 / (1 + math.exp(exponent))
            return 4 / tau * sigmoid * advantage
    return stopped_weight(objective, token) * advantage * live


def token_weight(objective: Objective, token: Token) -> float:
    advantage, z = token.advantage, token.logprob - anchor(objective, token)
    ratio = safe_exp(z)
    if not isinstance(objective, Is | PpoClip | Sapo):
        return stopped_weight(objective, token) * advantage
    if abs(z) > 20:
        return 0.0
    if isinstance(objective, Is):
        return clipped_weight(ratio, advantage, (0.0, math.inf), objective.dual_clip)
    if isinstance(objective, PpoClip):
        return clipped_weight(ratio, advantage, bounds(objective), objective.dual_clip)
    tau = objective.tau_pos if advantage > 0 else objective.tau_neg
    half = tau * (ratio - 1) / 2
    return 0.0 if abs(half) > 300 else ratio / math.cosh(half) ** 2 * advantage


def gamma(objective: Objective, token: Token) -> float:
    """Router-shift weight of a token; 1 for GMPO, which has none."""
    return max(objective.gamma_min, token.router_shift) if isinstance(objective, Rspo) else 1.0


def geometric(objective: Gmpo | Rspo, tokens: list[Token], live: list[float]) -> tuple[float, list[bool]]:
    """The factor S of A, router weights included, and which tokens keep their gradient."""
    positive = tokens[0].advantage > 0
    bound = math.inf if objective.log_clip is None else objective.log_clip
    log_gammas = [math.log(gamma(objective, token)) for token in tokens]
    z = [value - anchor(objective, token) for value, token in zip(live, tokens, strict=True)]
    placement = objective.placement if isinstance(objective, Rspo) else "before"
    factor = 0.0
    if placement == "before":
        z = [a + b for a, b in zip(z, log_gammas, strict=True)]
    else:
        factor = mean(log_gammas) * (-1.0 if placement == "literal_b" and not positive else 1.0)
    cut = [min(value, bound) if positive else max(value, -bound) for value in z]
    keep = [value <= bound if positive else value >= -bound for value in z]
    return safe_exp(mean(cut) + factor), keep


def product_weight(objective: Vespo, tokens: list[Token]) -> float:
    """phi, of the frozen logprobs."""
    log_w = clamp(sum(token.logprob - anchor(objective, token) for token in tokens), -20.0, 20.0)
    positive = tokens[0].advantage >= 0
    k = objective.k_pos if positive else objective.k_neg
    decay = objective.lambda_pos if positive else objective.lambda_neg
    exponent = k * log_w + decay * (1 - math.exp(log_w))
    return math.exp(exponent) if exponent > -700 else 0.0


def values(objective: Objective, tokens: list[Token], live: list[float]) -> list[float]:
    """J of each token of one sequence; where it is one number of the sequence, that number for each."""
    pairs = list(zip(tokens, live, strict=True))
    match objective:
        case Gspo():
            s = safe_exp(mean([value - anchor(objective, token) for token, value in pairs]))
            advantage = tokens[0].advantage
            return [clipped_value(s, advantage, bounds(objective), objective.dual_clip)] * len(tokens)
        case GspoToken():
            s = safe_exp(mean([token.logprob - anchor(objective, token) for token in tokens]))
            own = [(s * math.exp(value - token.logprob), token.advantage) for token, value in pairs]
            return [clipped_value(r, a, bounds(objective), objective.dual_clip) for r, a in own]
        case Gmpo() | Rspo():
            return [geometric(objective, tokens, live)[0] * tokens[0].advantage] * len(tokens)
        case Vespo():
            phi = product_weight(objective, tokens)
            return [phi * token.advantage * value for token, value in pairs]
    return [token_value(objective, token, value) for token, value in pairs]


def weights_g(objective: Objective, tokens: list[Token]) -> list[float]:
    """g of each token of one sequence, in closed form."""
    frozen = [token.logprob for token in tokens]
    match objective:
        case Gspo() | GspoToken():
            log_s = mean([token.logprob - anchor(objective, token) for token in tokens])
            if abs(log_s) > 20:
                return [0.0] * len(tokens)
            arguments = bounds(objective), objective.dual_clip
            return [clipped_weight(math.exp(log_s), token.advantage, *arguments) for token in tokens]
        case Gmpo() | Rspo():
            s, keep = geometric(objective, tokens, frozen)
            if s in (math.exp(-20), math.exp(20)):
                return [0.0] * len(tokens)
            return [s * t.advantage if kept else 0.0 for t, kept in zip(tokens, keep, strict=True)]
        case Vespo():
            phi = product_weight(objective, tokens)
            return [phi * token.advantage for token in tokens]
    return [token_weight(objective, token) for token in tokens]


# Corrections: one constant for each token.


def level_ratio(level: str, token: Token, tokens: list[Token]) -> float:
    logs = [other.old - other.rollout for other in tokens]
    if level == "token":
        return safe_exp(token.old - token.rollout)
    return safe_exp(sum(logs) if level == "sequence" else mean(logs))


def harmful(token: Token) -> bool:
    z = token.logprob - token.rollout
    return token.advantage * z > 0


def harmful_limit(threshold: float, batch: Batch) -> float:
    """Largest tau with mean min(|z|, tau)^2 <= threshold over the harmful tokens, by bisection."""
    z = [abs(t.logprob - t.rollout) for sequence in batch for t in sequence.trained if harmful(t)]
    if not z or mean([value**2 for value in z]) <= threshold:
        return math.inf
    low, high = 0.0, max(z)
    for _ in range(100):
        middle = (low + high) / 2
        fits = mean([min(value, middle) ** 2 for value in z]) <= threshold
        low, high = (middle, high) if fits else (low, middle)
    return low


def drift_limit(threshold: float, batch: Batch) -> float:
    """Largest |log rho| that stays when the largest go until the mean square is at most threshold."""
    drift = sorted(abs(t.old - t.rollout) for sequence in batch for t in sequence.trained)
    while drift and mean([value**2 for value in drift]) > threshold:
        drift.pop()
    return drift[-1] if drift else -1.0


def limit_of(correction: Correction, batch: Batch) -> float:
    """The bound of M2PO on |z|, over the whole batch; no other correction looks beyond its sequence."""
    if not isinstance(correction, M2po):
        return math.inf
    find = drift_limit if correction.scope == "all" else harmful_limit
    return find(correction.threshold, batch)


def m2po_keeps(correction: M2po, token: Token, limit: float) -> bool:
    if correction.scope == "all":
        return abs(token.old - token.rollout) <= limit
    if not harmful(token):
        return True
    ratio = safe_exp(token.logprob - token.rollout)
    if token.advantage > 0:
        return ratio <= 1 + max(safe_exp(limit) - 1, correction.clip_high)
    return ratio >= 1 - max(1 - safe_exp(-limit), correction.clip_low)


def correction_weight(correction: Correction, token: Token, tokens: list[Token], limit: float) -> float:
    match correction:
        case Tis():
            return min(level_ratio(correction.level, token, tokens), correction.cap)
        case Mis() | IcePop():
            rho = level_ratio(getattr(correction, "level", "token"), token, tokens)
            inside = (correction.low or 0.0) <= rho <= correction.high
            return (1.0 if getattr(correction, "mask_weight", "ratio") == "one" else rho) if inside else 0.0
        case GeometricRejection():
            if not (correction.low or 0.0) <= level_ratio("geometric", token, tokens) <= correction.high:
                return 0.0
            if correction.mask_weight == "one":
                return 1.0
            return min(level_ratio("token", token, tokens), correction.cap or math.inf)
        case M2po():
            return float(m2po_keeps(correction, token, limit))
        case OutlierTokens():
            ratios = [safe_exp(other.logprob - other.rollout) for other in tokens]
            low, high = correction.low or 0.0, correction.high or math.inf
            return float(all(low <= ratio <= high for ratio in ratios))
        case Opsm():
            drift = mean([other.rollout - other.logprob for other in tokens])
            return 0.0 if token.advantage < 0 and drift > correction.delta else 1.0
    raise AssertionError(correction)


# Aggregation and the whole loss.


def token_weights(aggregation: Aggregation, batch: Batch) -> list[list[float]]:
    """w of each token of each sequence; 0 where it does not train."""
    lengths = [len(sequence.trained) for sequence in batch]
    groups = [sequence.group for sequence in batch]
    sequences, prompts = sum(length > 0 for length in lengths), 0
    group_tokens = {group: 0 for group in groups}
    for group, length in zip(groups, lengths, strict=True):
        group_tokens[group] += length
    prompts = sum(tokens > 0 for tokens in group_tokens.values())
    table = []
    for sequence, length in zip(batch, lengths, strict=True):
        divisor = {
            "token_mean": sum(lengths),
            "seq_mean_token_mean": sequences * length,
            "seq_mean_token_sum": sequences,
            "token_sum_norm": sequences * (aggregation.max_tokens or 0),
            "prompt_mean": prompts * group_tokens[sequence.group],
            "seq_len_weighted": sequences,
        }[aggregation.kind]
        table.append([1 / divisor if token.trains else 0.0 for token in sequence.tokens])
    return table


def over_age(spec: LossSpec, token: Token) -> bool:
    return spec.max_staleness is not None and token.staleness > spec.max_staleness


def kl_value(spec: LossSpec, token: Token, live: float) -> tuple[float, float]:
    """The estimate and its derivative by the logprob."""
    assert spec.kl is not None
    d = live - token.ref
    k3 = math.exp(-d) - 1 + d
    if spec.kl.resolved_estimator == "k2":
        return d**2 / 2, d
    if spec.kl.resolved_estimator == "k3":
        return k3, 1 - math.exp(-d)
    under = token.logprob if isinstance(spec.objective, Pg) else anchor(spec.objective, token)
    ratio, cap = math.exp(live - under), spec.kl.resolved_cap or math.inf
    constant = min(1.0, cap / math.exp(token.logprob - under))
    return constant * ratio * k3, constant * ratio * d


def regularizer(
    spec: LossSpec, token: Token, live: float, tokens: list[Token], rows: list[float]
) -> tuple[float, float]:
    """KL and drift penalty of one token of a sequence, with their derivative, before the weight w.

    rows: the live logprobs of the sequence's tokens.
    """
    value = slope = 0.0
    if spec.kl is not None and spec.kl.placement == "loss":
        kl, kl_slope = kl_value(spec, token, live)
        value, slope = spec.kl.coefficient * kl, spec.kl.coefficient * kl_slope
    if spec.drift_penalty is not None:
        z, parts = live - token.rollout, 1
        if spec.drift_penalty.level == "sequence":
            z, parts = sum(a - other.rollout for a, other in zip(rows, tokens, strict=True)), len(tokens)
        value += spec.drift_penalty.coefficient * z**2 / parts
        slope += spec.drift_penalty.coefficient * 2 * z
    if spec.kl_cov is not None and token.held:
        z = live - anchor(spec.objective, token)
        value += spec.kl_cov.coefficient * abs(z)
        slope += spec.kl_cov.coefficient * (1.0 if z > 0 else -1.0 if z < 0 else 0.0)
    return value, slope


def constants(spec: LossSpec, batch: Batch) -> list[list[float]]:
    """c of each token that trains: its corrections multiplied; 0 where it is too old or not selected."""
    table = []
    limits = [(correction, limit_of(correction, batch)) for correction in spec.corrections]
    for sequence in batch:
        row, tokens = [], sequence.trained
        for token in tokens:
            factors = [correction_weight(c, token, tokens, limit) for c, limit in limits]
            live = not over_age(spec, token) and token.selected
            row.append(math.prod(factors) if live else 0.0)
        table.append(row)
    return table


def loss(spec: LossSpec, batch: Batch, live: list[list[float]] | None = None) -> float:
    """L; `live` logprobs of all tokens by sequence replace those outside of every stop-gradient."""
    total, weights, factors = 0.0, token_weights(spec.aggregation, batch), constants(spec, batch)
    tokens_of_batch = sum(len(sequence.trained) for sequence in batch)
    for i, sequence in enumerate(batch):
        rows = live[i] if live is not None else [token.logprob for token in sequence.tokens]
        rows = [row for row, token in zip(rows, sequence.tokens, strict=True) if token.trains]
        if not rows:
            continue
        weight = [w for w, token in zip(weights[i], sequence.tokens, strict=True) if token.trains]
        surrogate = values(spec.objective, sequence.trained, rows)
        for t, token in enumerate(sequence.trained):
            total -= weight[t] * factors[i][t] * surrogate[t] if factors[i][t] else 0.0
            if not over_age(spec, token):
                total += weight[t] * regularizer(spec, token, rows[t], sequence.trained, rows)[0]
                coefficient = spec.entropy.coefficient if spec.entropy is not None else 0.0
                total -= coefficient * token.entropy / tokens_of_batch
    return total


def gradient(spec: LossSpec, batch: Batch) -> list[float]:
    """dL/dl of every token of the batch, flat: - w c g, and the regularisers'."""
    flat: list[float] = []
    weights, factors = token_weights(spec.aggregation, batch), constants(spec, batch)
    for i, sequence in enumerate(batch):
        g = weights_g(spec.objective, sequence.trained) if sequence.trained else []
        trained = iter(zip(g, factors[i], strict=True))
        for token, weight in zip(sequence.tokens, weights[i], strict=True):
            if not token.trains:
                flat.append(0.0)
                continue
            own, factor = next(trained)
            rows = [other.logprob for other in sequence.trained]
            own_slope = regularizer(spec, token, token.logprob, sequence.trained, rows)[1]
            slope = 0.0 if over_age(spec, token) else own_slope
            flat.append(weight * (slope - factor * own))
    return flat


def finite_differences(spec: LossSpec, batch: Batch, step: float = 1e-6) -> list[float]:
    """dL/dl of every token by central differences of `loss`, one token at a time."""
    frozen = [[token.logprob for token in sequence.tokens] for sequence in batch]
    flat = []
    for i, sequence in enumerate(batch):
        for t in range(len(sequence.tokens)):
            ends = []
            for move in (step, -step):
                moved = [list(row) for row in frozen]
                moved[i][t] += move
                ends.append(loss(spec, batch, moved))
            flat.append((ends[0] - ends[1]) / (2 * step))
    return flat
