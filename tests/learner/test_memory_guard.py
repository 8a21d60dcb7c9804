"""A model that does not fit is refused before loading; the formula matches a real learner's tensors."""

from pathlib import Path

import pytest
import torch
from learner.fakes import config_with, contrast
from slipstream.config.learner_memory import learner_memory, models_beside
from slipstream.hub.safetensors_header import ModelSize, model_size
from slipstream.learner import memory_guard
from slipstream.learner.memory_guard import check_memory
from slipstream.learner.policy.lora import load_trained
from slipstream.learner.policy.reference import load_reference
from slipstream.learner.training.critic import load_critic
from slipstream.learner.training.step import TrainingStep

CPU = torch.device("cpu")


def test_one_rank_holds_the_bytes_of_the_formula(tiny_dir: Path) -> None:
    config = config_with(
        "learner.critic.kind=model",
        model={"path": str(tiny_dir)},
        algorithm={"preset": "ppo", "advantage": {"kind": "gae"}, "kl": {"coefficient": 0.05}},
    )
    policy = load_trained(config, device=CPU)
    reference = load_reference(config, device=CPU, dtype=policy.dtype, policy=policy)
    critic = load_critic(config, policy)
    assert reference is not None
    assert critic is not None
    training = TrainingStep(policy, config, reference=reference, critic=critic)
    training.train([contrast("a")], version=0)
    models = (policy.model, reference.policy.model, critic.module)
    optimizers = (training.optimizer, critic.optimizer)
    weights = sum(each.nbytes for model in models for each in model.parameters())
    moments = sum(v.nbytes for o in optimizers for s in o.state.values() for v in s.values() if v.dim())

    size = model_size(tiny_dir)
    assert size is not None
    assert models_beside(config, tiny_dir) == (tiny_dir, tiny_dir)
    need = learner_memory(config, size, ranks=1, reference=size, critic=size)
    assert need.rank["weights"] == pytest.approx(weights, rel=0.01)  # the critic's head beside it
    assert need.rank["moments"] == pytest.approx(moments, rel=0.01)
    assert need.rank["gradients"] == need.rank["moments"] // 2


def test_ranks_share_all_memory_except_gathered_parameters() -> None:
    size = ModelSize(parameters=1_000, layer=30, outside=100)
    one, four = (learner_memory(config_with(), size, ranks=ranks) for ranks in (1, 4))
    assert one.rank == {"weights": 4_000, "gradients": 4_000, "moments": 8_000, "gathered": 0}
    assert four.rank == {"weights": 1_000, "gradients": 1_000, "moments": 2_000, "gathered": 800}
    adapted = config_with("learner.lora.rank=4", "model.dtype=bfloat16")
    assert learner_memory(adapted, size, ranks=1).rank_bytes == 2_000
    assert learner_memory(adapted, size, ranks=1).version == 0
    assert learner_memory(adapted, size, ranks=1).published_on(1) == 0
    merged = config_with("learner.lora={rank: 4, serve: merged}", "model.dtype=bfloat16")
    assert learner_memory(merged, size, ranks=1).version == 2_000
    assert learner_memory(merged, size, ranks=1).published_on(1) == 2_500
    full_only = config_with(
        "learner.lora={rank: 4, serve: merged}", "model.dtype=bfloat16", "weights.deltas=false"
    )
    assert learner_memory(full_only, size, ranks=1).published_on(1) == 2_000


def test_a_model_is_measured_by_its_headers(tiny_dir: Path, tmp_path: Path) -> None:
    size = model_size(tiny_dir)
    model = load_trained(config_with(model={"path": str(tiny_dir)}), device=CPU).model
    assert size is not None
    assert size.parameters == sum(each.numel() for each in model.parameters())
    assert size.layer == sum(each.numel() for each in model.model.layers[0].parameters())
    assert size.outside == size.parameters - len(model.model.layers) * size.layer
    assert model_size(tmp_path) is None


def test_a_model_that_does_not_fit_is_refused_with_both_numbers(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_with(model={"path": str(tiny_dir)})
    check_memory(config, CPU, ranks=1)
    monkeypatch.setattr(memory_guard, "_memory_bytes", lambda: 1000)
    with pytest.raises(
        ValueError, match=r"at least 0\.0 GiB on each of its 1 ranks .* this machine, with 1 rank .* has 0\.0"
    ):
        check_memory(config, CPU, ranks=1)


@pytest.mark.parametrize("senders", ["all", "first"])
def test_on_cpus_the_ranks_of_a_machine_share_its_memory_with_what_they_publish(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch, senders: str
) -> None:
    config = config_with(f"weights.senders={senders}", model={"path": str(tiny_dir)})
    size = model_size(tiny_dir)
    assert size is not None
    need = learner_memory(config, size, ranks=6)
    first = 3 * need.rank_bytes + (need.published // 2 if senders == "all" else need.published)
    second = first if senders == "all" else 3 * need.rank_bytes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    for machine, enough in (("0", first), ("1", second)):
        monkeypatch.setenv("GROUP_RANK", machine)
        monkeypatch.setattr(memory_guard, "_memory_bytes", lambda enough=enough: enough)
        check_memory(config, CPU, ranks=6)
        monkeypatch.setattr(memory_guard, "_memory_bytes", lambda enough=enough: enough - 1)
        with pytest.raises(ValueError, match="this machine, with 3 ranks"):
            check_memory(config, CPU, ranks=6)
