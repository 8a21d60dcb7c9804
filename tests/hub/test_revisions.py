"""Commits of the models and data sets of a run and its stages; pinned ones cause no call."""

from pathlib import Path

import pytest
from slipstream.cli.errors import UsageError
from slipstream.cli.hub import pinned
from slipstream.config import RunConfig, parse_config
from slipstream.config.data import HubData
from slipstream.config.load import given_tree
from slipstream.config.stage_runs import stage_runs
from slipstream.hub.access import HubError, token_of
from slipstream.hub.revisions import commits, unpinned, with_commits

SUMS, CHAINS = "a" * 40, "b" * 40
PINNED = {"dataset org/sums@main": SUMS, "dataset org/chains@v1": CHAINS}


def staged() -> RunConfig:
    chains = {"kind": "hub", "id": "org/chains", "revision": "v1", "demonstration_column": "chain"}
    return parse_config(
        {
            "data": {"kind": "hub", "id": "org/sums"},
            "stages": [
                {"name": "cold", "kind": "supervised", "steps": 1, "set": {"data": chains, "seed": 3}},
                {"name": "learn", "kind": "rl"},
                {"name": "more", "kind": "rl", "set": {"data.split": "hard"}},
            ],
        }
    )


def test_the_data_of_each_stage_stays_at_one_commit() -> None:
    config = staged()
    resolved = with_commits(config, PINNED)
    parsed = parse_config(given_tree(resolved))
    datas = [stage_run.config.data for stage_run in stage_runs(parsed)]

    assert [data.revision for data in datas if isinstance(data, HubData)] == [CHAINS, SUMS, SUMS]
    assert [getattr(data, "split", "") for data in datas] == ["train", "train", "hard"]
    assert stage_runs(parsed)[0].config.seed == 3
    assert not any(unpinned(stage_run.config) for stage_run in stage_runs(parsed))
    assert commits(config, resolved) == PINNED
    assert with_commits(resolved, {}) == resolved


def test_the_demonstrations_that_a_stage_mixes_in_stay_at_one_commit() -> None:
    chains = {"kind": "hub", "id": "org/chains", "revision": "v1"}
    stage = {"name": "select", "kind": "rejection_sampling", "mix": {"data": chains, "share": 0.2}}
    config = parse_config({"stages": [stage]})
    resolved = with_commits(config, PINNED)
    (stage_run,) = stage_runs(parse_config(given_tree(resolved)))

    assert unpinned(stage_runs(config)[0].config) == ["mix.data.revision (of org/chains)"]
    assert unpinned(stage_run.config) == []
    assert commits(config, resolved) == {"dataset org/chains@v1": CHAINS}
    assert with_commits(resolved, {}) == resolved


def test_a_missing_package_is_reported_before_the_hub_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.cli.hub.find_spec", lambda name: None)
    data = {"kind": "hub", "id": "org/sums"}
    for config in (parse_config({"data": data}), staged()):
        with pytest.raises(
            UsageError,
            match=r"datasets is not installed: pip install '\.\[datasets\]' in a clone of Slipstream",
        ):
            pinned(config)


def test_without_a_network_the_first_call_fails_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("slipstream.hub.access.time.sleep", pauses.append)

    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("refused")

    monkeypatch.setattr("slipstream.hub.revisions._snapshot", refused)
    with pytest.raises(HubError, match="did not answer for data set org/sums after 3 attempts") as caught:
        with_commits(parse_config({"data": {"kind": "hub", "id": "org/sums"}}), {})
    assert sum(pauses) <= 2
    assert "directory" not in str(caught.value)


def test_a_token_file_that_is_missing_is_named_with_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HubError, match=rf"token_file token \(in {tmp_path}\) cannot be read"):
        token_of(HubData(id="org/sums", token_file=Path("token")))
