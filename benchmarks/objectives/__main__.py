"""Measure every objective against the plain policy gradient: time, memory, and how both grow with the tokens.

    python -m benchmarks.objectives [--tokens N] [--sequences N] [--rounds N] [--longest N] [--clock cpu]
    python -m benchmarks.objectives --count

Time is of one call of `policy_loss` and its backward pass, metrics included. A round measures every loss
once, one after the other, so that whatever else the machine does falls on all of them; a ratio is the median
over the rounds of loss / pg inside a round. Memory is the largest sum of live bytes that torch's allocator
reports between the call and the end of the backward pass, as the profiler records it: temporaries inside
operators and the gradient itself count, the inputs do not. Its unit is one float32 vector of all tokens.

With --count: operations of one call, and how often the host would wait for a device; the sums of the metrics
are read, the backward pass is left out. These do not depend on the machine.
"""

import argparse
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

import torch
from slipstream.algorithms import LossSpec, Tally, TopK, count, lay_out, policy_loss
from slipstream.algorithms.spec import (
    OBJECTIVES,
    Aggregation,
    Cispo,
    Correction,
    Dppo,
    DriftPenalty,
    GeometricRejection,
    Gspo,
    IcePop,
    Kl,
    M2po,
    Mis,
    Objective,
    Opsm,
    OutlierTokens,
    Pg,
    PpoClip,
    Tis,
    Vespo,
)
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.cost import CLOCKS
from benchmarks.objectives.operations import Operations, operations_of
from benchmarks.ratio import print_ratio

TOP_K = 4
"""Logprobs of each token for the top-K divergences, whose temporaries are [T, K]."""

COUNTED = {2_000: 8, 100_000: 400}
"""Tokens, and sequences, of the batches whose operations are counted."""

SHOWN = (
    *("pg", "ppo_clip", "gspo", "rspo", f"dppo topk_kl, K = {TOP_K}"),
    *("ppo_clip + m2po", "ppo_clip + tis + opsm + kl + drift", "cispo, prompt_mean"),
)
"""The losses whose operations are printed; the most waits are of all."""

GROWTH = (10_000, 100_000, 1_000_000, 10_000_000)

Inputs = dict[str, Any]


def losses() -> dict[str, LossSpec]:
    """Return what is measured, by name: every objective, then every correction, then the regularisers."""
    mean = Aggregation(kind="token_mean")
    objectives: dict[str, Objective] = {kind: spec() for kind, spec in OBJECTIVES.items()}
    objectives["dppo binary_kl"] = Dppo(divergence="binary_kl")
    objectives[f"dppo topk_tv, K = {TOP_K}"] = Dppo(divergence="topk_tv")
    objectives[f"dppo topk_kl, K = {TOP_K}"] = Dppo(divergence="topk_kl")
    corrections: list[tuple[str, Correction]] = [
        ("tis", Tis()),
        ("tis sequence", Tis(level="sequence")),
        ("mis", Mis()),
        ("icepop", IcePop()),
        ("geometric_rejection", GeometricRejection()),
        ("m2po", M2po()),
        ("m2po all", M2po(scope="all")),
        ("opsm", Opsm()),
        ("outlier_tokens", OutlierTokens()),
    ]
    anchor = PpoClip(anchor="batch")
    specs = {name: LossSpec(objective=spec, aggregation=mean) for name, spec in objectives.items()}
    for name, correction in corrections:
        specs[f"ppo_clip + {name}"] = LossSpec(objective=anchor, aggregation=mean, corrections=(correction,))
    specs["cispo + kl"] = LossSpec(objective=Cispo(), aggregation=mean, kl=Kl(coefficient=0.001))
    specs["cispo + drift"] = LossSpec(objective=Cispo(), aggregation=mean, drift_penalty=DriftPenalty())
    specs["ppo_clip + tis + opsm + kl + drift"] = LossSpec(
        objective=anchor,
        aggregation=mean,
        corrections=(Tis(), Opsm()),
        kl=Kl(coefficient=0.001),
        drift_penalty=DriftPenalty(),
        max_staleness=4,
    )
    by_prompt = Aggregation(kind="prompt_mean")
    specs["cispo, prompt_mean"] = LossSpec(objective=Cispo(), aggregation=by_prompt)
    return specs


def ragged(tokens: int, sequences: int, seed: int = 0) -> Inputs:
    """Return a packed batch of exactly that many tokens, in sequences of lognormal length, float32."""
    source = torch.Generator().manual_seed(seed)
    share_B = torch.empty(sequences).log_normal_(0.0, 0.7, generator=source).double()
    end_B = (share_B.cumsum(0) / share_B.sum() * (tokens - sequences)).long() + torch.arange(1, sequences + 1)
    length_B = torch.diff(end_B, prepend=torch.zeros(1, dtype=torch.long))
    length_B[-1] += tokens - int(end_B[-1])

    def drifted(from_T: Tensor, by: float) -> Tensor:
        return (from_T + by * torch.randn(tokens, generator=source)).clamp(max=-1e-4)

    mu_T = -torch.empty(tokens).exponential_(1.5, generator=source) - 1e-3
    prox_T = drifted(mu_T, 0.05)
    return {
        "logprobs": drifted(prox_T, 0.1).requires_grad_(),
        "rollout_logprobs": mu_T,
        "old_logprobs": prox_T,
        "ref_logprobs": drifted(mu_T, 0.3),
        "advantages": torch.randn(sequences, generator=source),
        "mask": torch.rand(tokens, generator=source) < 0.9,
        "sequence_ids": torch.repeat_interleave(torch.arange(sequences), length_B),
        "staleness": torch.randint(0, 6, (tokens,), generator=source),
        "group_ids": torch.arange(sequences) // 8,
        "router_shift": 1 - 0.2 * torch.rand(tokens, generator=source),
        "top_k": top_k_of(mu_T, source),
    }


def top_k_of(mu_T: Tensor, source: torch.Generator) -> TopK:
    """Return K logprobs a token under both policies; the first is the sampled token."""
    rest_T1 = torch.log1p(-mu_T.exp()).unsqueeze(1) - 2.0
    mu_TK = torch.cat([mu_T.unsqueeze(1), rest_T1.expand(-1, TOP_K - 1)], dim=1)
    noise_TK = 0.05 * torch.randn(mu_TK.shape, generator=source)
    sampled_TK = torch.zeros(mu_TK.shape, dtype=torch.bool)
    sampled_TK[:, 0] = True
    return TopK(
        logprobs_TK=(mu_TK + noise_TK).clamp(max=-1e-4), rollout_logprobs_TK=mu_TK, sampled_TK=sampled_TK
    )


def inputs_for(spec: LossSpec, inputs: Inputs) -> Inputs:
    """Return what the loss needs: an input that it does not would only make pg slower."""
    unneeded = {
        "old_logprobs": not spec.needs_old_logprobs,
        "ref_logprobs": not spec.needs_ref_logprobs,
        "router_shift": spec.objective.kind != "rspo",
        "top_k": not (isinstance(spec.objective, Dppo) and spec.objective.needs_top_k),
        "group_ids": spec.aggregation.kind != "prompt_mean",
    }
    return {name: value for name, value in inputs.items() if not unneeded.get(name)}


def step(spec: LossSpec, inputs: Inputs) -> None:
    """Run a forward and a backward pass, and drop the gradient of the last step."""
    inputs["logprobs"].grad = None
    policy_loss(spec, **inputs_for(spec, inputs)).loss.backward()


def seconds(call: Callable[[], object], clock: str) -> float:
    begin = CLOCKS[clock]()
    call()
    return CLOCKS[clock]() - begin


def rounds_of(
    specs: Mapping[str, LossSpec], inputs: Inputs, rounds: int, clock: str
) -> dict[str, list[float]]:
    """Return the seconds of each loss in each round; one round before them is not counted."""
    times: dict[str, list[float]] = {name: [] for name in specs}
    for number in range(rounds + 1):
        for name, spec in specs.items():
            taken = seconds(lambda spec=spec: step(spec, inputs), clock)  # type: ignore[misc]
            if number:
                times[name].append(taken)
    return times


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most bytes that the call held at one time, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recording:
        call()
    assert recording.profiler is not None
    results = recording.profiler.kineto_results
    changes = [event for event in results.events() if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


def peak_vectors(spec: LossSpec, inputs: Inputs) -> float:
    """Return the peak of `peak_bytes` in float32 vectors of T."""
    inputs["logprobs"].grad = None
    return peak_bytes(lambda: step(spec, inputs)) / (4 * inputs["logprobs"].numel())


def ratio_to_pg(times: Mapping[str, list[float]], name: str) -> float:
    return median(one / pg for one, pg in zip(times[name], times["pg"], strict=True))


def copies_of_pg(inputs: Inputs, rounds: int, clock: str) -> float:
    """Return the time of a step of pg over that of a plain copy of one vector."""
    spec, source = losses()["pg"], inputs["rollout_logprobs"]
    target = torch.empty_like(source)
    copy = median(seconds(lambda: target.copy_(source), clock) for _ in range(20 * rounds))
    return median(seconds(lambda: step(spec, inputs), clock) for _ in range(rounds)) / copy


def print_objectives(tokens: int, sequences: int, rounds: int, clock: str) -> None:
    """Print time and memory of every loss, and the worst of both."""
    inputs, specs = ragged(tokens, sequences), losses()
    print(f"{tokens:,} tokens in {sequences:,} sequences, float32, {torch.get_num_threads()} threads\n")
    print("| loss | time / `pg` | vectors of T |\n| --- | --- | --- |")
    times = rounds_of(specs, inputs, rounds, clock)
    rows = [(name, ratio_to_pg(times, name), peak_vectors(spec, inputs)) for name, spec in specs.items()]
    for name, ratio, vectors in rows:
        print(f"| `{name}` | {ratio:.2f} | {vectors:.1f} |")
    print()
    print_ratio("time of the slowest loss / pg", max(ratio for _, ratio, _ in rows))
    print_ratio("most memory of a loss, in vectors of T", max(vectors for _, _, vectors in rows))
    print_ratio("time of pg / a copy of one vector", copies_of_pg(inputs, rounds, clock))


def print_growth(longest: int, rounds: int, clock: str) -> None:
    """Print time per token at each size, in units of that at the largest but one."""
    sizes = [size for size in GROWTH if size <= longest]
    objectives = {"pg": Pg(), "cispo": Cispo(), "gspo": Gspo(), "vespo": Vespo()}
    mean = Aggregation(kind="token_mean")
    specs = {name: LossSpec(objective=objective, aggregation=mean) for name, objective in objectives.items()}
    batches = {size: ragged(size, max(1, size // 244)) for size in sizes}
    per_token: dict[tuple[str, int], list[float]] = {(n, s): [] for n in specs for s in sizes}
    for _ in range(rounds):
        for size, inputs in batches.items():
            for name, times in rounds_of(specs, inputs, 1, clock).items():
                per_token[name, size] += [time / size for time in times]
    middle = sizes[-2] if len(sizes) > 1 else sizes[-1]
    print(f"\nTime per token / that at {middle:,} tokens:\n")
    print(f"| tokens | {' | '.join(f'`{name}`' for name in specs)} |\n{'| --- ' * (1 + len(specs))}|")
    for size in sizes:
        cells = [median(per_token[n, size]) / median(per_token[n, middle]) for n in specs]
        print(f"| {size:,} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")


def counted(spec: LossSpec, arguments: Inputs) -> Operations:
    """Return the operations of a call, and of reading its sums; a call before it has imported all modules."""
    policy_loss(spec, **arguments)
    return operations_of(lambda: policy_loss(spec, **arguments).sums)


def as_learner(inputs: Inputs) -> Inputs:
    """Return the arguments of `policy_loss` as the learner passes them.

    The learner computes the layout of the row and the counts of the batch once a step, and adds up metrics
    in a Tally; otherwise each call of `policy_loss` computes layout and counts again.
    """
    rest = {name: value for name, value in inputs.items() if name not in ("mask", "sequence_ids")}
    return rest | {
        "layout": lay_out(inputs["mask"], inputs["sequence_ids"]),
        "counts": count(inputs["mask"], inputs["sequence_ids"]),
        "tally": Tally(inputs["mask"].device),
    }


def print_counts() -> None:
    """Print operations and waits of one call, and the most waits of a call of any loss."""
    batches = [ragged(tokens, sequences) for tokens, sequences in COUNTED.items()]
    counts = {
        name: [counted(spec, inputs_for(spec, inputs)) for inputs in batches]
        for name, spec in losses().items()
    }
    pg = losses()["pg"]
    shown = {f"`{name}`": counts[name] for name in SHOWN}
    shown["`pg` as the learner calls it"] = [counted(pg, as_learner(inputs_for(pg, i))) for i in batches]
    print("Operations of one call, and how often the host waits:\n")
    print(f"| loss | {' | '.join(f'{tokens:,} tokens' for tokens in COUNTED)} |\n| --- | --- | --- |")
    for name, ours in shown.items():
        print(f"| {name} | {' | '.join(f'{one.operations}, {one.synchronisations}' for one in ours)} |")
    print()
    most = max(one.synchronisations for ours in counts.values() for one in ours)
    print_ratio("most waits of the host in a call", most)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--sequences", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2, help="CPU threads of torch")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="what seconds are of")
    parser.add_argument(
        "--longest", type=int, default=10_000_000, help="largest size of the table of growth; 0: none"
    )
    parser.add_argument("--count", action="store_true", help="count operations and waits, measure no time")
    arguments = parser.parse_args()
    if arguments.count:
        print_counts()
        return
    torch.set_num_threads(arguments.threads)
    print_objectives(arguments.tokens, arguments.sequences, arguments.rounds, arguments.clock)
    if arguments.longest:
        print_growth(arguments.longest, min(arguments.rounds, 3), arguments.clock)


if __name__ == "__main__":
    main()
