"""A cold start writes a loadable directory with one rename, or prints one line with the reason."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from learner.fakes import TINY
from slipstream.learner.policy.tiny import make_tiny_model
from slipstream.learner.policy.tiny_files import main as write_files
from slipstream.learner.stages.warmup import main
from slipstream.records import ChatMessage, Prompt
from slipstream.tokens import load_tokens
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.learner.stages.warmup.TEST_PROMPTS", 3)


def write_config(directory: Path, **tree: object) -> Path:
    base = {
        "model": {"tiny": TINY.model_dump()},
        "warmup": {"steps": 2, "batch_size": 4},
        "data": {"kind": "addition", "digits": 1},
        "rollout": {"max_new_tokens": 4},
        "learner": {"device": "cpu"},
    }
    path = directory / "run.yaml"
    path.write_text(yaml.safe_dump(base | tree))
    return path


def warm_up(directory: Path, **tree: object) -> int:
    config = write_config(directory, **tree)
    return main(["--config", str(config), "--output", str(directory / "made")])


@pytest.mark.usefixtures("quick")
def test_two_steps_make_a_directory_that_loads_and_rows_of_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warm_up(tmp_path) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["step"] for row in rows if "step" in row] == [1, 2]
    phases = [row["phase"] for row in rows if "phase" in row]
    assert phases[0].startswith("loading ")
    assert "2 steps of 4 demonstrations, learning rate 0.001, float32" in phases
    assert phases.count("measuring the accuracy, prompt") == 3
    assert rows[-1]["done"] is True
    assert 0 <= rows[-1]["accuracy"] <= 1
    made = tmp_path / "made"
    assert AutoModelForCausalLM.from_pretrained(made).config.hidden_size == TINY.width
    prompt = Prompt(prompt_id="p", task="addition", answer="2", text="1+1=")
    assert len(load_tokens(made, max_new_tokens=4).encode(prompt)) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made", "run.yaml"]
    assert not [path for path in made.iterdir() if path.is_dir()]


@pytest.mark.parametrize("experts", [0, 4])
def test_the_files_without_weights_are_those_of_the_model(tmp_path: Path, experts: int) -> None:
    tiny = TINY.model_copy(update={"experts": experts})
    config = write_config(tmp_path, model={"tiny": tiny.model_dump()})
    assert write_files(["--config", str(config), "--output", str(tmp_path / "files")]) == 0
    make_tiny_model(tiny, tmp_path / "model", seed=1)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "files" / name).read_bytes() == (tmp_path / "model" / name).read_bytes()
    files, model = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("files", "model"))
    assert files.items() <= model.items()
    assert not list((tmp_path / "files").glob("*.safetensors"))


def test_a_run_without_a_tiny_model_has_no_files_to_make(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(tmp_path, model={"path": "/models/policy"})
    assert write_files(["--config", str(config), "--output", str(tmp_path / "files")]) == 1
    assert "model.tiny is not set" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_the_remains_of_an_interrupted_cold_start_are_deleted(tmp_path: Path) -> None:
    rest = tmp_path / ".partial-made"
    rest.mkdir()
    (rest / "model.safetensors").write_bytes(b"half")
    assert warm_up(tmp_path, warmup={"steps": 0}) == 0
    assert not rest.exists()
    assert (tmp_path / "made" / "model.safetensors").stat().st_size > 1000


@pytest.mark.usefixtures("quick")
def test_the_same_seed_makes_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    made = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        directory = tmp_path / name
        directory.mkdir()
        assert warm_up(directory, seed=seed) == 0
        made.append((directory / "made" / "model.safetensors").read_bytes())
    assert made[0] == made[1] != made[2]


@pytest.mark.usefixtures("quick")
def test_a_model_of_ones_own_is_trained_on_a_file_of_ones_own_and_stays_as_it_was(
    tiny_dir: Path, tmp_path: Path
) -> None:
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    before = {path.name: path.read_bytes() for path in tiny_dir.iterdir()}
    status = warm_up(
        tmp_path,
        model={"path": str(tiny_dir)},
        data={"kind": "file", "path": str(data), "held_out_fraction": 0.5},
    )
    assert status == 0
    assert {path.name: path.read_bytes() for path in tiny_dir.iterdir()} == before
    made = (tmp_path / "made" / "model.safetensors").read_bytes()
    assert made != before["model.safetensors"]


@pytest.mark.usefixtures("quick")
def test_demonstrations_apart_from_answers_are_learned_and_no_accuracy_is_reported(
    tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"prompt": f"{i}+1=", "answer": "2", "thought": "77777"} for i in range(64)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = {"kind": "file", "path": str(data), "held_out_fraction": 0.5, "demonstration_column": "thought"}
    settings = {"steps": 60, "batch_size": 8, "learning_rate": 3e-3}
    assert warm_up(tmp_path, model={"path": str(tiny_dir)}, data=file, warmup=settings) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"done": True, "accuracy": None}
    tokens = load_tokens(tmp_path / "made", max_new_tokens=4)
    prompt = tokens.encode(Prompt(prompt_id="p", task="t", answer="2", text="5+1="))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "made")
    generated = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=5)[0, len(prompt) :]
    assert tokens.decode(generated.tolist()) == "77777"


@pytest.mark.parametrize("mixed", [False, True])
def test_no_accuracy_is_measured_without_the_turns_of_an_environment(
    mixed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environment = {"kind": "custom", "function": "examples.guess_number:GuessNumber"}
    data: dict[str, Any] = {"kind": "addition", "digits": 1, "environment": environment}
    if mixed:
        data = {
            "kind": "mixture",
            "of": [data, {**data, "environment": {"kind": "custom", "function": "a:B"}}],
        }
    assert warm_up(tmp_path, data=data, rewards=[{"name": "solved", "kind": "environment"}]) == 0
    *rows, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last == {"done": True, "accuracy": None}
    assert not [row for row in rows if "measuring" in row.get("phase", "")]


@pytest.mark.parametrize(
    ("row", "says"),
    [('{"prompt": "1+1="}', "rows.jsonl, line 3"), ("{", "rows.jsonl, line 3")],
    ids=["no answer", "not JSON"],
)
def test_a_bad_row_is_status_1_and_one_line_that_names_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: str, says: str
) -> None:
    data = tmp_path / "rows.jsonl"
    good = '{"prompt": "1+1=", "answer": "2"}\n'
    data.write_text(good * 2 + row + "\n")
    assert warm_up(tmp_path, data={"kind": "file", "path": str(data)}) == 1
    error = capsys.readouterr().err
    assert error.startswith("warmup: ")
    assert error.count("\n") == 1
    assert says in error
    assert not (tmp_path / "made").exists()


def test_a_model_that_is_not_there_is_status_1_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert warm_up(tmp_path, model={"path": str(tmp_path / "nowhere")}) == 1
    assert "nowhere" in capsys.readouterr().err


def test_an_output_that_exists_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "precious").write_text("mine")
    assert warm_up(tmp_path) == 1
    output = capsys.readouterr()
    assert f"{tmp_path / 'made'} exists and is not empty" in output.err
    assert output.out == ""
    assert (tmp_path / "made" / "precious").read_text() == "mine"


CHATML = "{% for m in messages %}<s>{{ m.role }}:{{ m.content }}<e>{% endfor %}"


def with_template(source: Path, directory: Path) -> Path:
    """A copy of a tiny model with a chat template, whose end of turn is not the end of sequence."""
    shutil.copytree(source, directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<s>", "<e>"]})
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(directory)
    return directory


@pytest.mark.usefixtures("quick")
def test_an_answer_to_messages_ends_as_the_chat_template_ends_a_turn_and_engines_stop_there(
    tiny_dir: Path, tmp_path: Path
) -> None:
    chat = with_template(tiny_dir, tmp_path / "chat")
    tokens = load_tokens(chat, max_new_tokens=4)
    tokenizer = AutoTokenizer.from_pretrained(chat)
    end, eos = tokenizer.convert_tokens_to_ids("<e>"), tokenizer.eos_token_id
    messages = (ChatMessage(role="user", content="1+1="),)
    conversation = Prompt(prompt_id="p", task="t", answer="2", messages=messages)
    text = Prompt(prompt_id="p", task="t", answer="2", text="1+1=")
    assert tokens.encode_answer("2", prompt=conversation)[-1] == end != eos
    assert tokens.encode_answer("2", prompt=text)[-1] == tokens.encode_answer("2")[-1] == eos

    rows = [{"messages": [{"role": "user", "content": f"{i}+1="}], "answer": str(i + 1)} for i in range(8)]
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    status = warm_up(
        tmp_path,
        model={"path": str(chat)},
        data={"kind": "file", "path": str(data), "held_out_fraction": 0.5},
        rollout={"max_new_tokens": 4},
    )
    assert status == 0
    settings = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert end in settings["eos_token_id"]
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "made").generation_config.eos_token_id[-1] == end


@pytest.mark.usefixtures("quick")
def test_a_model_of_ones_own_has_its_own_defaults_and_dtype(
    tiny_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"path": str(tiny_dir), "dtype": "bfloat16"}
    assert warm_up(tmp_path, model=model, warmup={"steps": 1}) == 0
    assert "1 steps of 16 demonstrations, learning rate 1e-05, bfloat16" in capsys.readouterr().out
    made = AutoModelForCausalLM.from_pretrained(tmp_path / "made", dtype="auto")
    assert made.dtype == torch.bfloat16
