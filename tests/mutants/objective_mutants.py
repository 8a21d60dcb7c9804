"""Faults in the objectives: signs, bounds, and gradients through terms that must be constant."""

from typing import Final

from mutants.mutant import Mutant

_TESTS: Final = (
    "test_objectives.py",
    "test_mutant_gaps.py",
    "test_objective_identities.py",
    "test_loss_properties.py",
)


def _token(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="objectives/token.py", old=old, new=new, tests=_TESTS)


def _sequence(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="objectives/sequence.py", old=old, new=new, tests=_TESTS[1:])


def _divergence(name: str, old: str, new: str) -> Mutant:
    return Mutant(name=name, file="objectives/divergence.py", old=old, new=new, tests=_TESTS[1:])


OBJECTIVE_MUTANTS: Final = (
    _token("pg: no sign", "_unbounded(l_T * A_T,", "_unbounded(l_T * A_T.abs(),"),
    _token("pg: the gradient weight is the logprob", "torch.ones_like(l_T)", "l_T"),
    _token("ppo_clip: the larger of both", "torch.minimum(r_T * A_T,", "torch.maximum(r_T * A_T,"),
    _token("ppo_clip: swapped bounds", "low, high = ends", "high, low = ends"),
    _token(
        "ppo_clip: stops where A < 0 and r is high", "(A_T < 0) & (r_T < low)", "(A_T < 0) & (r_T > high)"
    ),
    _token(
        "ppo_clip: stops outside whatever the sign",
        "low_T, high_T = (A_T < 0) & (r_T < low), (A_T > 0) & (r_T > high)",
        "low_T, high_T = r_T < low, r_T > high",
    ),
    _token("ppo_clip: gradient through the upper clip", "(moves_T & ~low_T & ~high_T)", "(moves_T & ~low_T)"),
    _token("ppo_clip: gradient past the clamp", "(moves_T & ~low_T & ~high_T)", "(~low_T & ~high_T)"),
    _token("ppo_clip: weight without the ratio", "r_T * (moves_T & ~low_T", "1.0 * (moves_T & ~low_T"),
    _token(
        "dual clip: for A > 0", "torch.where(A_T < 0, torch.maximum", "torch.where(A_T > 0, torch.maximum"
    ),
    _token("dual clip: the lower of both", "torch.maximum(J_T, dual_clip", "torch.minimum(J_T, dual_clip"),
    _token("dual clip: gradient goes on", "high_T = high_T | ((A_T < 0) & (r_T > dual_clip))", "pass"),
    _token(
        "is: stops the gradient of negative A",
        "(0.0, torch.inf), spec.dual_clip",
        "(1.0, torch.inf), spec.dual_clip",
    ),
    _token("cispo: no cap", "c_T = r_T.clamp(low, high)", "c_T = r_T.clamp(min=low)"),
    _token("cispo: masks good answers below", "(A_T < 0) & (r_T < least)", "(r_T < least)"),
    _token("cispo: masks bad answers above", "(A_T > 0) & (r_T > most)", "(r_T > most)"),
    _token("cispo: no lower end", "c_T = r_T.clamp(low, high)", "c_T = r_T.clamp(max=high)"),
    _token("cispo: drops what it should cap", "c_T = r_T.clamp(low, high)", "c_T = r_T * (r_T <= high)"),
    _token("rollout_is: keeps the outside", "r_T * ~(below_T | above_T)", "r_T * (below_T | above_T)"),
    _token("rollout_is: keeps the high side", "r_T * ~(below_T | above_T)", "r_T * ~below_T"),
    _token(
        "topr: tapers good answers", "tokens.advantages_T > 0\n    c_T", "tokens.advantages_T < 0\n    c_T"
    ),
    _token("topr: bad answers without a cap", "r_T.clamp(max=1.0)", "r_T"),
    _token(
        "sapo: temperatures swapped",
        "masked_fill(A_T > 0, spec.tau_pos)",
        "masked_fill(A_T < 0, spec.tau_pos)",
    ),
    _token("sapo: value without 4 / tau", "4 / tau_T * gate_T * A_T", "gate_T * A_T"),
    _token("sapo: weight without the ratio", "r_T * sech2_T * tokens", "sech2_T * tokens"),
    _token("sapo: gate not squared off", "sech2_T = 4 * gate_T * torch", "sech2_T = 2 * torch"),
    _token(
        "weighted: gradient through the weight", "weight_T=c_T,", "weight_T=c_T * (1 + tokens.logprobs_T),"
    ),
    _token(
        "weighted: value without the logprob",
        "value_T=c_T * tokens.advantages_T * tokens",
        "value_T=c_T * tokens.advantages_T * 0 * tokens",
    ),
    _sequence(
        "gspo: product for the mean",
        "tokens.of_token(tokens.sequence_mean(tokens.log_ratio_T))",
        "tokens.of_token(tokens.sequence_sum(tokens.log_ratio_T))",
    ),
    _sequence(
        "gspo: clipped by the token's ratio",
        "return clipped(tokens, bounded(mean_T),",
        "return clipped(tokens, tokens.z_T,",
    ),
    _sequence("gspo: bounds swapped", "else 1.0 - spec.clip_low", "else 1.0 - (spec.clip_high or 0)"),
    _sequence(
        "gmpo: cut on the wrong side",
        "torch.where(A_T > 0, z_T.clamp(max=bound)",
        "torch.where(A_T < 0, z_T.clamp(max=bound)",
    ),
    _sequence(
        "gmpo: cut on both sides",
        "z_T.clamp(max=bound), z_T.clamp(min=-bound)",
        "z_T.clamp(-bound, bound), z_T.clamp(-bound, bound)",
    ),
    _sequence("gmpo: gradient of cut tokens", "& ~low_T & ~high_T)", ")"),
    _sequence(
        "gmpo: past the clamp the gradient goes on", "((mean_T.abs() <= LOG_RATIO_LIMIT) & ~low_T", "(~low_T"
    ),
    _sequence("rspo: gamma without its floor", "clamp(spec.gamma_min, 1.0)", "clamp(max=1.0)"),
    _sequence(
        "rspo: gamma amplifies", "clamp(spec.gamma_min, 1.0).log()", "clamp(spec.gamma_min, 1.0).log().neg()"
    ),
    _sequence("rspo: before and after swapped", 'spec.placement == "before"', 'spec.placement == "after"'),
    _sequence(
        "rspo: literal_b without the sign", "log_gamma_T * tokens.advantages_T.sign()", "log_gamma_T * 1.0"
    ),
    _sequence(
        "vespo: mean for the product",
        "tokens.of_token(tokens.sequence_sum(tokens.log_ratio_T))",
        "tokens.of_token(tokens.sequence_mean(tokens.log_ratio_T))",
    ),
    _sequence("vespo: signs swapped", "tokens.advantages_T >= 0", "tokens.advantages_T < 0"),
    _sequence("vespo: phi(1) is not 1", "(lambda_T + k_T * log_W_T", "(k_T * log_W_T"),
    _sequence("vespo: gradient through phi", "weight_T=phi_T,", "weight_T=phi_T * (1 + k_T),"),
    _sequence(
        "vespo: W not bounded",
        "bounded(tokens.of_token(tokens.sequence_sum(tokens.log_ratio_T)))",
        "tokens.of_token(tokens.sequence_sum(tokens.log_ratio_T))",
    ),
    _divergence(
        "dppo: drops what moves back",
        "above_T & (A_T > 0), below_T & (A_T < 0)",
        "above_T & (A_T < 0), below_T & (A_T > 0)",
    ),
    _divergence("dppo: limits swapped", "(limit_low, limit_high) =", "(limit_high, limit_low) ="),
    _divergence(
        "dppo: no cap", "clamp(max=torch.inf if spec.cap is None else spec.cap)", "clamp(max=torch.inf)"
    ),
    _divergence(
        "dppo: KL the other way", "return binary_kl(log_p_T, log_q_T)", "return binary_kl(log_q_T, log_p_T)"
    ),
    _divergence(
        "dppo: total variation by ratio",
        "(log_p_T.exp() - log_q_T.exp()).abs()",
        "(log_p_T - log_q_T).exp().sub(1).abs()",
    ),
    _divergence(
        "dppo: top-K without the rest",
        "return _relative(q_TK, p_TK).sum(1) + _relative_rest(rest_q_T, rest_p_T)",
        "return _relative(q_TK, p_TK).sum(1)",
    ),
    _divergence("dppo: top-K variation not halved", "return 0.5 * (", "return 1.0 * ("),
    _divergence(
        "dppo: sampled token counted twice",
        "missing_T1 = ~top_k.sampled_TK.any(dim=1, keepdim=True)",
        "missing_T1 = torch.ones_like(top_k.sampled_TK[:, :1])",
    ),
    _divergence("ipo: keeps what is far", "z_T.exp() * ~far_T", "z_T.exp() * far_T"),
    _divergence("ipo: masks one side only", "z_T.exp() * ~far_T", "z_T.exp() * ~(far_T & (z_T > 0))"),
)
