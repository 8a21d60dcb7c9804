"""A whole run, with the emulated engine, whose objective reads the likeliest tokens of rollouts."""

import math
from pathlib import Path

import pytest
from system.driver import running


@pytest.mark.long
def test_a_run_masks_by_the_distance_over_the_top_tokens(tmp_path: Path) -> None:
    settings = (
        "rollout.engine=emulated",
        "rollout.emulated.median_seconds=0.05",
        "rollout.max_new_tokens=6",
        "algorithm={preset: dppo_tv, objective: {kind: dppo, divergence: topk_tv, top_k: 10}}",
    )
    with running(tmp_path, *settings, steps=6) as run:
        assert run.finish(seconds=300) == 0, run.said()
        rows = run.rows("step")
        assert [row["step"] for row in rows] == list(range(1, 7))
        assert all(math.isfinite(row["loss"]) for row in rows)
        # The engine samples uniformly from 10 tokens, the untrained policy from 99: the distance over the top
        # tokens is about 0.9, and that of the sampled token alone at most 0.1.
        first = rows[0]
        assert first["out_of_band_fraction_low"] + first["out_of_band_fraction_high"] > 0.5
        assert run.rows("evaluation")
        summary = run.summary()
        assert (summary["ledger_residual"], summary["orphans"]) == (0, 0)
