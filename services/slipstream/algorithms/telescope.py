"""From the keys of Telescope's algorithm pages to our axes: one pure function."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slipstream.algorithms.presets.telescope import EPSILON
from slipstream.algorithms.resolve import nearest
from slipstream.algorithms.spec import checks

ALGORITHMS: Final = ("grpo", "rloo", "reinforce_pp", "dr_grpo", "cispo", "gspo", "sapo")
OWN_RATIO: Final = ("cispo", "gspo", "sapo")
OWN_BASELINE: Final = ("rloo", "dr_grpo")
DEFAULTS: Final[Mapping[str, Any]] = {
    "algorithm": "grpo",
    "group_size": 8,
    "advantage_norm": "group",
    "dr_grpo_loss_agg_mode": "token_mean",
    "clip_low": 0.4,
    "clip_high": 0.5,
    "sapo_tau_pos": 1.0,
    "sapo_tau_neg": 1.05,
    "use_ppo_clip": False,
    "ppo_clip_ref_logprobs": "rollout",
    "number_of_minibatches": 1,
}
"""Every key, with Telescope's own default."""
DEPARTURE_OF_AGGREGATION: Final[Mapping[str, str]] = {
    "token_mean": "token_mean counts the tokens of the whole batch; Telescope's is that of each microbatch",
    "token_sum_norm": "token_sum_norm divides by rollout.max_new_tokens a completion; Telescope's by its "
    "packed row",
    "seq_mean_token_mean": "seq_mean_token_mean divides by the sequences of the whole batch; Telescope's "
    "gspo weighs sequences the same, and divides by the tokens of each microbatch",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """The keys of Telescope as keys of a run."""

    algorithm: dict[str, Any]
    """The `algorithm:` section of a run that means the same."""
    group_size: int | None
    """rollout.group_size, where the keys state it."""
    minibatches: int | None
    """learner.minibatches, where the keys state it."""
    notes: tuple[str, ...]
    """The translation of each key, in the order of the mapping; then the differences from Telescope."""


def translate(mapping: Mapping[str, Any]) -> Translation:
    """Return Slipstream's axes for Telescope's keys; a missing key has Telescope's default.

    Raises ValueError for an unknown key, a value out of range, a key that nothing would read, and the
    combinations that Telescope refuses.
    """
    for key in mapping:
        if key not in DEFAULTS:
            raise ValueError(
                f"telescope: got the key {key!r}, needs only {', '.join(DEFAULTS)}{nearest(key, DEFAULTS)}"
            )
    name = mapping.get("algorithm", DEFAULTS["algorithm"])
    keys = {**DEFAULTS, **({"advantage_norm": "batch"} if name == "reinforce_pp" else {}), **mapping}
    _require_ranges(keys)
    _refuse_contradictions(name, keys)
    _refuse_unread(name, keys, mapping)
    algorithm = {
        "preset": f"telescope_{name}",
        "advantage": _advantage(name, keys),
        "objective": _objective(name, keys),
        "aggregation": _aggregation(name, keys),
    }
    return Translation(
        algorithm=algorithm,
        group_size=mapping.get("group_size"),
        minibatches=mapping.get("number_of_minibatches"),
        notes=(*(_became(key, mapping[key], algorithm) for key in mapping), *_departures(algorithm)),
    )


def _advantage(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    if name in OWN_BASELINE:
        return {"kind": name}
    kind = "grpo" if keys["advantage_norm"] == "group" else "reinforce_pp"
    return {"kind": kind, "epsilon": EPSILON}


def _aggregation(name: str, keys: Mapping[str, Any]) -> str:
    """Return the aggregation that gives tokens the weights of Telescope.

    Its gspo divides the gradient of each token by the length of the sequence.
    """
    if name == "dr_grpo":
        return str(keys["dr_grpo_loss_agg_mode"])
    return "seq_mean_token_mean" if name == "gspo" else "token_mean"


def _objective(name: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    anchor = {"anchor": keys["ppo_clip_ref_logprobs"]}
    band = {"clip_low": keys["clip_low"], "clip_high": keys["clip_high"]}
    if name == "sapo":
        return {"kind": name, **anchor, "tau_pos": keys["sapo_tau_pos"], "tau_neg": keys["sapo_tau_neg"]}
    if name in OWN_RATIO:
        return {"kind": name, **anchor, **band}
    if keys["use_ppo_clip"]:
        return {"kind": "ppo_clip", **anchor, **band}
    return {"kind": "pg", "allow_uncorrected": True}


def _require_ranges(keys: Mapping[str, Any]) -> None:
    checks.require_choice("telescope.algorithm", keys["algorithm"], ALGORITHMS)
    checks.require_choice("telescope.advantage_norm", keys["advantage_norm"], ("group", "batch"))
    checks.require_choice(
        "telescope.dr_grpo_loss_agg_mode", keys["dr_grpo_loss_agg_mode"], ("token_mean", "token_sum_norm")
    )
    checks.require_choice(
        "telescope.ppo_clip_ref_logprobs", keys["ppo_clip_ref_logprobs"], ("rollout", "batch")
    )
    checks.require_boolean("telescope.use_ppo_clip", keys["use_ppo_clip"])
    checks.require_positive("telescope.clip_low", keys["clip_low"], at_most=1.0)
    for key in ("clip_high", "sapo_tau_pos", "sapo_tau_neg"):
        checks.require_positive(f"telescope.{key}", keys[key])
    checks.require_integer("telescope.group_size", keys["group_size"], at_least=1)
    checks.require_integer("telescope.number_of_minibatches", keys["number_of_minibatches"], at_least=1)


def _refuse_contradictions(name: str, keys: Mapping[str, Any]) -> None:
    if keys["use_ppo_clip"] and name in OWN_RATIO:
        raise ValueError(
            f"telescope.use_ppo_clip: got true with the algorithm {name}, which bounds its ratio itself; "
            "leave it out"
        )
    if keys["advantage_norm"] == "batch" and name in OWN_BASELINE:
        raise ValueError(
            f"telescope.advantage_norm: got 'batch' with the algorithm {name}, which compares within the "
            "group and divides by nothing; set group, or the algorithm reinforce_pp"
        )
    if keys["advantage_norm"] == "group" and name == "reinforce_pp":
        raise ValueError(
            "telescope.advantage_norm: got 'group' with the algorithm reinforce_pp, which is the "
            "normalisation over the batch; set batch, or the algorithm grpo"
        )


def _refuse_unread(name: str, keys: Mapping[str, Any], mapping: Mapping[str, Any]) -> None:
    clips = keys["use_ppo_clip"] or name in ("cispo", "gspo")
    reads = {
        "clip_low": clips,
        "clip_high": clips,
        "ppo_clip_ref_logprobs": keys["use_ppo_clip"] or name in OWN_RATIO,
        "sapo_tau_pos": name == "sapo",
        "sapo_tau_neg": name == "sapo",
        "dr_grpo_loss_agg_mode": name == "dr_grpo",
    }
    instead = {
        "clip_low": "sapo has sapo_tau_pos and sapo_tau_neg" if name == "sapo" else "set use_ppo_clip: true",
        "ppo_clip_ref_logprobs": "set use_ppo_clip: true",
        "dr_grpo_loss_agg_mode": "set algorithm: dr_grpo",
    }
    instead["clip_high"] = instead["clip_low"]
    for key in mapping:
        if not reads.get(key, True):
            raise ValueError(
                f"telescope.{key}: got {mapping[key]!r}, and the algorithm {name} does not read it; "
                f"{instead.get(key, 'set algorithm: sapo')}, or leave it out"
            )


def _became(key: str, value: object, algorithm: Mapping[str, Any]) -> str:
    objective, advantage = algorithm["objective"], algorithm["advantage"]
    shown = str(value).lower() if isinstance(value, bool) else value
    fields = {"ppo_clip_ref_logprobs": "anchor", "sapo_tau_pos": "tau_pos", "sapo_tau_neg": "tau_neg"}
    ours = {
        "algorithm": f"preset {algorithm['preset']}",
        "group_size": f"rollout.group_size {value}",
        "number_of_minibatches": f"learner.minibatches {value}",
        "advantage_norm": f"advantage {advantage['kind']}",
        "dr_grpo_loss_agg_mode": f"aggregation {algorithm['aggregation']}",
        "use_ppo_clip": f"objective {objective['kind']}",
    }
    field = f"{fields.get(key, key)} {value} of the objective {objective['kind']}"
    return f"{key}: {shown} became {ours.get(key, field)}"


def _departures(algorithm: Mapping[str, Any]) -> list[str]:
    departures = [DEPARTURE_OF_AGGREGATION[algorithm["aggregation"]]]
    if algorithm["objective"]["kind"] == "pg":
        departures.append(
            "without use_ppo_clip there is no ratio: the gradient is biased as soon as data are stale"
        )
    return departures
