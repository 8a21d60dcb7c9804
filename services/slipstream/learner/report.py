"""The reports of the learner: metrics.jsonl, samples.jsonl, and the Prometheus metrics of a step."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slipstream.learner.broadcast.publisher import Published
from slipstream.learner.source_report import (
    mean_generated,
    mean_trained,
    observe_sources,
    of_sources,
    reward_means,
    scored,
)
from slipstream.learner.training.loss_metrics import DIVERSITY, observe_critic, observe_loss
from slipstream.learner.training.record import StepResult
from slipstream.records import Completion, Evaluation, FinishReason, Generated, Group, Segment
from slipstream.records.json_values import finite
from slipstream.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds of a step by phase, and of the loop since its start (`elapsed`).

    `checkpoint`: for how long a checkpoint has held training since the step before; it is in no other phase.
    `copy_wait`: for how long the update waited until the last version was copied; a part of `train`.
    """

    elapsed: float
    wait: float
    train: float
    publish: float
    checkpoint: float = 0.0
    copy_wait: float = 0.0

    @property
    def total(self) -> float:
        """Length of the step."""
        return self.wait + self.train + self.publish


class Report:
    """Appends to the files of the run directory; each line is flushed as a whole."""

    def __init__(self, run_dir: Path, metrics: Metrics) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._rows = (run_dir / "metrics.jsonl").open("a", encoding="utf-8", buffering=1)
        self.continues = self._rows.tell() > 0
        self._samples = (run_dir / "samples.jsonl").open("a", encoding="utf-8", buffering=1)
        self._metrics = metrics

    def event(self, name: str, **values: Any) -> None:
        """Write one row of metrics.jsonl."""
        self._rows.write(_line({"event": name, "time": time.time(), **values}))

    def step(
        self,
        version: int,
        groups: Sequence[Group],
        result: StepResult,
        published: Published,
        timing: Timing,
        *,
        weights: Mapping[str, float],
        generated: Generated,
    ) -> Mapping[str, Any]:
        """Write and return the row of one step.

        weights: of the reward components. `rewards` are means over the groups generated since the step
        before, filtered groups included; `rewards_trained` are means over the batch.
        """
        of_groups = _of_groups(groups, version - 1)
        trained = of_groups["rewards"]
        rewards = dict(generated.reward_means) if generated.groups else trained
        total_trained = mean_trained(groups, weights)
        by_source = of_sources(groups, generated, weights)
        row = {
            "step": version,
            "version": version,
            "reward_mean": mean_generated(generated, weights) if generated.groups else total_trained,
            "reward_mean_trained": total_trained,
            **of_groups,
            "rewards": rewards,
            "rewards_trained": trained,
            "groups_generated": generated.groups,
            "unvaried_share": generated.unvaried_share if generated.groups else math.nan,
            **({"sources": by_source} if by_source else {}),
            **_of_result(result),
            "tokens_trained": result.tokens,
            "model_flops": result.model_flops,
            "tokens_per_second": result.tokens / max(timing.total, 1e-9),
            "idle_fraction": timing.wait / max(timing.total, 1e-9),
            "elapsed_seconds": timing.elapsed,
            "wait_seconds": timing.wait,
            "train_seconds": timing.train,
            "publish_seconds": timing.publish,
            "checkpoint_seconds": timing.checkpoint,
            "copy_wait_seconds": timing.copy_wait,
            "pause_seconds": published.pause_seconds,
            "transfer_seconds": published.transfer_seconds,
            "served_seconds": published.seconds,
            "sent_bytes": published.sent_bytes,
            "weights_changed": math.nan if published.changed is None else published.changed,
            "workers": published.rollouts,
        }
        self.event("step", **row)
        self._observe(result, row, timing)
        self._observe_publication(published)
        self._observe_lengths(groups)
        return row

    def evaluation(self, step: int, evaluation: Evaluation) -> None:
        """Write the row of an evaluation. A gauge keeps its value if nothing could be scored."""
        for name in ("accuracy", "best_of_n", "majority"):
            value = getattr(evaluation, name)
            if value is not None:
                self._metrics.set(f"held_out_{name}", value)
        for source, part in evaluation.by_source.items():
            if part.accuracy is not None:
                self._metrics.set("source_held_out_accuracy", part.accuracy, source=source)
        self.event(
            "evaluation",
            step=step,
            version=evaluation.version,
            accuracy=evaluation.accuracy,
            best_of_n=evaluation.best_of_n,
            majority=evaluation.majority,
            completions=evaluation.completions,
            errors=evaluation.errors,
            mean_version=evaluation.mean_version,
            **({"sources": _accuracies(evaluation)} if evaluation.by_source else {}),
        )

    def samples(self, step: int, groups: Sequence[Group], *, count: int) -> None:
        """Write the first completion of the first `count` groups, token by token."""
        for group in [group for group in groups if group.completions][:count]:
            self._samples.write(_line(_sample(step, group, group.completions[0])))

    def close(self) -> None:
        """Close both files."""
        self._rows.close()
        self._samples.close()

    def _observe_publication(self, published: Published) -> None:
        if published.rollouts:
            self._metrics.observe("step_to_served_seconds", published.seconds)
        if published.changed is not None:
            self._metrics.set("weights_changed_fraction", published.changed)
            self._metrics.count("versions_unchanged_total", published.changed == 0.0)

    def _observe(self, result: StepResult, row: Mapping[str, Any], timing: Timing) -> None:
        metrics = self._metrics
        metrics.set("last_step_timestamp_seconds", time.time())
        metrics.observe_counts("staleness_versions", result.staleness_counts)
        over_age = result.metrics.get("tokens", 0.0) - result.tokens
        metrics.count("tokens_masked_total", max(0.0, over_age), reason="over_age")
        observe_loss(metrics, result.by_staleness)
        observe_critic(metrics, result.metrics)
        for name in DIVERSITY:
            metrics.set("diversity", result.metrics.get(name, math.nan), metric=name)
        metrics.set("collapse_alarm", float(result.collapsing))
        metrics.observe_counts("ratio", result.ratio_counts)
        for name, value in row["rewards"].items():
            metrics.set("reward_mean", value, reward=name)
        observe_sources(metrics, row.get("sources", {}))
        metrics.set("gradient_norm", result.gradient_norm)
        metrics.set("learning_rate", result.learning_rate)
        metrics.count("bad_steps_total", result.bad)
        metrics.count("model_flops_total", result.model_flops)
        metrics.count("sequences_too_long_total", result.too_long)
        metrics.observe("copy_wait_seconds", timing.copy_wait)
        for phase, seconds in (("wait", timing.wait), ("train", timing.train), ("publish", timing.publish)):
            metrics.observe("step_seconds", seconds, phase=phase)

    def _observe_lengths(self, groups: Sequence[Group]) -> None:
        for completion in scored(groups):
            self._metrics.observe("completion_tokens", completion.tokens, kind="trained")


def _line(row: Mapping[str, Any]) -> str:
    """Return one line of strict JSON; numbers that are not finite become null."""
    return json.dumps(finite(row), allow_nan=False) + "\n"


def _of_groups(groups: Sequence[Group], version: int) -> dict[str, Any]:
    """Return the values that depend on the batch alone; `version` is the policy's before the step."""
    completions = scored(groups)
    versions = [completion.versions for completion in completions]
    return {
        "rewards": reward_means(completions),
        "dispatch_indices": [group.dispatch_index for group in groups],
        "completions": len(completions),
        "completions_with_several_versions": sum(len(v) > 1 for v in versions),
        "completions_stale": sum(
            len(of_one) > 1 or min(of_one, default=version) < version for of_one in versions
        ),
        "completions_withheld": sum(len(group.completions) for group in groups) - len(completions),
        "response_tokens_mean": _mean([float(c.tokens) for c in completions]),
        "segments_mean": _mean([float(len(c.segments)) for c in completions]),
        "truncated_fraction": _mean([float(c.finish_reason is FinishReason.LENGTH) for c in completions]),
    }


def _of_result(result: StepResult) -> dict[str, Any]:
    return {
        "loss": result.loss,
        "gradient_norm": result.gradient_norm,
        "learning_rate": result.learning_rate,
        "bad_steps": result.bad,
        "sequences_too_long": result.too_long,
        "staleness_mean": result.staleness_mean,
        "staleness_max": result.staleness_max,
        "staleness_histogram": dict(result.staleness_histogram),
        **result.metrics,
        "collapsing": result.collapsing,
        "by_staleness": {age: dict(metrics) for age, metrics in result.by_staleness.items()},
    }


def _sample(step: int, group: Group, completion: Completion) -> dict[str, Any]:
    later = [
        {"prompt_token_ids": list(group.prompt_of(segment)), "tokens": _tokens(segment)}
        for segment in completion.later_segments
    ]
    return {
        "step": step,
        "group": group.group_id,
        **({"source": group.prompt.source} if group.prompt.source else {}),
        "prompt": group.prompt.text
        or [{"role": m.role, "content": m.content} for m in group.prompt.messages],
        "prompt_tokens": len(group.prompt_of(completion)),
        "answer": group.prompt.answer,
        "text": completion.text,
        "finish_reason": completion.finish_reason.value,
        "rewards": {r.name: r.value for r in completion.rewards},
        "details": {r.name: r.detail for r in completion.rewards if r.detail},
        "tokens": _tokens(completion),
        **({"later_segments": later} if later else {}),
    }


def _tokens(segment: Segment) -> list[dict[str, Any]]:
    versions = [span.version for span in segment.spans for _ in range(span.start, span.end)]
    return [
        {"id": token, "logprob": logprob, "version": version}
        for token, logprob, version in zip(segment.token_ids, segment.logprobs, versions, strict=True)
    ]


def _accuracies(evaluation: Evaluation) -> dict[str, Any]:
    return {
        source: {"accuracy": part.accuracy, "completions": part.completions, "errors": part.errors}
        for source, part in evaluation.by_source.items()
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
