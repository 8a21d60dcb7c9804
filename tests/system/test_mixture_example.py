"""examples/mixture.yaml as processes: two environments in one run, with the shares of their sources."""

from collections import Counter
from pathlib import Path

from system.driver import Run, running

EXAMPLE = (Path(__file__).resolve().parents[2] / "examples/mixture.yaml").read_text(encoding="utf-8")
SMALL = (
    *("rollout.engine=emulated", "rollout.emulated.median_seconds=0.05", "rollout.group_size=2"),
    *("learner.groups_per_step=6", "learner.checkpoint.every_steps=1", "learner.samples_per_step=6"),
    *("evaluation.prompts=9", "evaluation.samples_per_prompt=1"),
    "staleness={pipeline_depth: 0, max_staleness: 8}",
)
APPLYING = {"sorting": {"exact_match"}, "game": {"solved", "turns"}}


def trained_by_source(run: Run) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in run.rows("step"):
        counts.update({name: part["groups_trained"] for name, part in row["sources"].items()})
    return counts


def test_an_interrupted_and_resumed_mixture_has_exactly_its_shares_and_its_rewards(tmp_path: Path) -> None:
    with running(tmp_path, *SMALL, steps=7, base=EXAMPLE) as run:
        run.wait_until("some steps", lambda: run.version() >= 3)
        run.interrupt()
        assert run.finish() == 0, run.said()
        before = run.version()
    assert 3 <= before < 7
    with running(tmp_path, *SMALL, "--resume", steps=7, base=EXAMPLE) as run:
        assert run.finish() == 0, run.said()
    assert sorted(i for row in run.rows("step") for i in row["dispatch_indices"]) == list(range(42))
    assert trained_by_source(run) == {"sorting": 28, "game": 14}
    for row in run.rows("step"):
        assert all(set(part["rewards"]) == APPLYING[name] for name, part in row["sources"].items())
    first, *_, last = run.rows("evaluation")
    for evaluation in (first, last):
        completions = {name: part["completions"] for name, part in evaluation["sources"].items()}
        assert completions == {"sorting": 6, "game": 3}
    summary = run.summary()
    assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
