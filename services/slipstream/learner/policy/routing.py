"""The routers of a mixture-of-experts: a forward pass records the chosen experts, or replays given ones.

A hook on every router reads the `Watch` of the current forward pass. It stays until the next forward pass, so
layers that are recomputed for their gradient use the same experts as before.

Shape suffixes: R tokens of a row, T predicted tokens of a row, L layers with experts, K experts active at a
token, E experts of a layer.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from slipstream.config.checks import EXPERT_KEYS

LARGEST_ID = torch.iinfo(torch.int16).max
PROBES = 16


class UnsupportedRouting(ValueError):
    """The model has no routers, or has routers that are not a softmax over experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """Experts at each predicted token, and their logprobs under the router, without gradient."""

    experts_TLK: torch.Tensor
    """int16 ids."""
    logprobs_TLK: torch.Tensor
    """float32, nats; over all experts of the layer, whatever the model does with the weights after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Whether a forward pass records or replays experts."""

    records: bool = False
    """Whether to record experts and their logprobs at the predicted tokens."""
    experts_TLK: torch.Tensor | None = None
    """Experts whose logprobs are recorded; None for the active experts."""
    replay_RLK: torch.Tensor | None = None
    """Experts that replace the router's choice; with a negative id, the router chooses. L counts all hidden
    layers of the model here."""


class Routers:
    """The routers of one model, in the order of its layers.

    Invariant: with the default `Watch()`, the hooks do not change what the model computes.
    """

    def __init__(self, model: Any) -> None:
        """Find the routers and hook them. Errors: UnsupportedRouting."""
        routers = list(_routers(model))
        if not routers:
            raise UnsupportedRouting(_without_routers(model))
        shapes = {(router.num_experts, router.top_k) for _, router in routers}
        if len(shapes) != 1 or max(shapes)[0] > LARGEST_ID:
            raise UnsupportedRouting(f"{type(model).__name__}: layers of (experts, top_k) {sorted(shapes)}")
        self.experts, self.top_k = shapes.pop()
        self.layers = [_layer_of(name) for name, _ in routers]
        self._renormalises = [_renormalises(router, model.config) for _, router in routers]
        self._watch, self._predictors_T = Watch(), torch.zeros(0, dtype=torch.int64)
        self._experts: dict[int, torch.Tensor] = {}
        self._logprobs: dict[int, torch.Tensor] = {}
        for place, (_, router) in enumerate(routers):
            router.register_forward_hook(partial(self._route, place))

    def begin(self, watch: Watch, predictors_T: torch.Tensor) -> None:
        """Set the watch of the next forward pass. predictors_T: where in the row each token is predicted."""
        self._watch, self._predictors_T = watch, predictors_T
        self._experts, self._logprobs = {}, {}

    def routed(self) -> Routed | None:
        """Return the record of the last forward pass; None if it did not record."""
        if not self._watch.records:
            return None
        places = range(len(self.layers))
        return Routed(
            experts_TLK=torch.stack([self._experts[place] for place in places], dim=1),
            logprobs_TLK=torch.stack([self._logprobs[place] for place in places], dim=1),
        )

    def _route(
        self, place: int, router: Any, inputs: Any, output: tuple[torch.Tensor, ...]
    ) -> tuple[torch.Tensor, ...]:
        """Return the output of a router, with replayed experts if there are any."""
        logits_RE, weights_RK, active_RK = output
        if self._watch.replay_RLK is not None:
            wanted_RK = self._watch.replay_RLK[:, self.layers[place]].to(active_RK)
            active_RK = torch.where(wanted_RK >= 0, wanted_RK, active_RK)
            replayed_RK = _weights(logits_RE, active_RK, renormalised=self._renormalises[place])
            weights_RK = replayed_RK.to(weights_RK.dtype)
        if self._watch.records:
            self._record(place, logits_RE.detach(), active_RK)
        return logits_RE, weights_RK, active_RK

    def _record(self, place: int, logits_RE: torch.Tensor, active_RK: torch.Tensor) -> None:
        requested_TLK = self._watch.experts_TLK
        experts_TK = active_RK[self._predictors_T] if requested_TLK is None else requested_TLK[:, place]
        logprobs_TE = logits_RE[self._predictors_T].float().log_softmax(dim=1)
        self._experts[place] = experts_TK.to(torch.int16)
        self._logprobs[place] = logprobs_TE.gather(1, experts_TK.long())


def router_shift(old: Routed, now: Routed) -> torch.Tensor:
    """Return RSPO's gamma without its floor, [T] in (0, 1]: exp(-mean |log new - log old|).

    The mean is over layers and experts.

    Both hold the logprobs of the experts that were active under the old policy.
    See Towards Stable and Effective Reinforcement Learning for Mixture-of-Experts, arXiv:2510.23027.
    """
    drift_T = (now.logprobs_TLK - old.logprobs_TLK).abs().mean(dim=(1, 2))
    gamma_T = (-drift_T).exp().clamp(min=torch.finfo(torch.float32).tiny)
    return gamma_T.nan_to_num(nan=1.0)  # such a token's logprob is not finite either: the step is skipped


def _weights(logits_RE: torch.Tensor, active_RK: torch.Tensor, *, renormalised: bool) -> torch.Tensor:
    """Return a router's weights of some experts, float32, with gradient."""
    weights_RK = logits_RE.softmax(dim=1, dtype=torch.float32).gather(1, active_RK)
    return weights_RK / weights_RK.sum(dim=1, keepdim=True) if renormalised else weights_RK


def _routers(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the modules that look like routers of transformers: one row of weights for each expert."""
    for name, module in model.named_modules():
        experts, weight = getattr(module, "num_experts", None), getattr(module, "weight", None)
        chooses = isinstance(experts, int) and isinstance(getattr(module, "top_k", None), int)
        if chooses and isinstance(weight, torch.Tensor) and weight.ndim == 2 and weight.shape[0] == experts:
            yield name, module


def _layer_of(name: str) -> int:
    """Return the number of the hidden layer that a module belongs to."""
    number = re.search(r"\.(\d+)\.", name)
    if number is None:
        raise UnsupportedRouting(f"the router {name} belongs to no numbered layer")
    return int(number[1])


def _renormalises(router: Any, config: Any) -> bool:
    """Return whether the weights of the active experts are scaled to add up to 1.

    A new router of the same class is probed, because the weights of this one may be sharded. Errors:
    UnsupportedRouting if its weights are not a softmax of its logits, renormalised or not.
    """
    kind = type(router)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.manual_seed(0)
            probe = kind(config.get_text_config()).float().eval()
            for parameter in probe.parameters():
                parameter.normal_()
            logits_RE, weights_RK, active_RK = probe(torch.randn(PROBES, router.weight.shape[1]))
            for renormalised in (True, False):
                expected_RK = _weights(logits_RE, active_RK, renormalised=renormalised)
                if torch.allclose(expected_RK, weights_RK.float(), atol=1e-5):
                    return renormalised
    except (TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise UnsupportedRouting(f"{kind.__name__}: not a supported router ({error})") from error
    raise UnsupportedRouting(
        f"{kind.__name__}: its weights are not a softmax over experts, and only such routers are supported "
        "(those of Qwen-MoE, Mixtral and OLMoE models are)"
    )


def _without_routers(model: Any) -> str:
    config = model.config.get_text_config()
    if any((getattr(config, key, None) or 0) > 1 for key in EXPERT_KEYS):
        return f"{type(model).__name__}: its routers are not modules of their own, which is not supported"
    return f"{type(model).__name__}: is a dense model, without a router; use gmpo, and no replay of experts"
