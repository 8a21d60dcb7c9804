"""What a run stores of its training and its evaluations, also when its learner is lost in between."""

from pathlib import Path

import pytest
from learner.learner_session import configured, rows, session
from learner.mortal import Happening, Script, kill, kill_once_2_is_durable
from slipstream.samples.reader import Filter, SampleReader


@pytest.mark.parametrize(
    "losses",
    [
        [],
        [{"after ack 3": kill_once_2_is_durable}, {"before ack 5": kill}],
        [{"after take_evaluated 1": kill}, {"after announce 3": kill}],
    ],
    ids=["no loss", "lost while it trained", "lost while it evaluated"],
)
def test_a_run_stores_each_completion_once_whenever_its_learner_is_lost(
    tiny_dir: Path, redis_url: str, tmp_path: Path, losses: list[dict[str, Happening]]
) -> None:
    config = configured(tiny_dir, tmp_path, "evaluation.every_steps=2")
    for at in losses:
        assert session(config, redis_url, Script(at=at)).version < 6
    assert session(config, redis_url).version == 6
    stored = SampleReader(tmp_path).completions(Filter(), count=1000).rows
    names = [(row["step"], row["group"], row["member"]) for row in stored]
    assert len(names) == len(set(names))
    trained = [row["step"] for row in stored if row["state"] in ("trained", "withheld")]
    assert {step: trained.count(step) for step in trained} == dict.fromkeys(range(1, 7), 16)
    evaluated = [row["step"] for row in stored if row["state"] == "evaluation"]
    reported = {int(name.split()[1]) for name in rows(tmp_path) if name.startswith("evaluation")}
    assert {0, 6} <= reported
    assert {step: evaluated.count(step) for step in evaluated} == dict.fromkeys(sorted(reported), 4)
