"""Accuracy on held-out questions by transformers' own generation, without a part of Slipstream.

    python examples/smollm2/evaluate.py MODEL ROWS.jsonl [OUTPUT.jsonl]

Samples one answer to each row at temperature 1 from the whole vocabulary, as the evaluation of a run does,
and another one greedily. Prints the accuracies, and the share of the commonest answer. OUTPUT takes the
sampled answers as rows for `slipstream score OUTPUT --reward exact_match`.
"""

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

BATCH = 32
NEW_TOKENS = 8
SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
GREEDY = {"do_sample": False}


def answers(model: Any, tokenizer: Any, rows: list[dict[str, Any]], how: dict[str, Any]) -> list[str]:
    """Return the text of an answer to each row."""
    texts: list[str] = []
    for start in range(0, len(rows), BATCH):
        batch = tokenizer.apply_chat_template(
            [row["messages"] for row in rows[start : start + BATCH]],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            padding=True,
        )
        with torch.no_grad():
            tokens = model.generate(**batch, max_new_tokens=NEW_TOKENS, **how)
        fresh = tokens[:, batch["input_ids"].shape[1] :]
        texts += [text.strip() for text in tokenizer.batch_decode(fresh, skip_special_tokens=True)]
    return texts


def report(texts: dict[str, list[str]], truths: list[str]) -> str:
    """The lines that are printed: for each way of sampling its accuracy and its commonest answer."""
    lines = []
    for name, answered in texts.items():
        right = sum(text == truth for text, truth in zip(answered, truths, strict=True))
        common, times = Counter(answered).most_common(1)[0]
        shares = f"{right / len(truths):.3f}, commonest answer {common!r} {times / len(truths):.3f}"
        lines.append(f"{name:<8} accuracy {shares}")
    commonest = max(Counter(truths).values()) / len(truths)
    return "\n".join([*lines, f"commonest right answer {commonest:.3f}, {len(truths)} questions"])


def main(directory: Path, data: Path, output: Path | None) -> None:
    """Print the numbers, and write the sampled answers."""
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    torch.manual_seed(0)
    sampled, greedy = (answers(model, tokenizer, rows, how) for how in (SAMPLING, GREEDY))
    print(report({"sampled": sampled, "greedy": greedy}, [row["answer"] for row in rows]))
    if output is not None:
        scored = ({**row, "completion": text} for row, text in zip(rows, sampled, strict=True))
        output.write_text("".join(json.dumps(row) + "\n" for row in scored), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) == 4 else None)
