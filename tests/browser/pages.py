"""Acts of the tests on a page, and runs that are hard to show."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from console.runs import HOSTILE
from samples.made_up import group, values_of
from samples.test_writer import writing
from slipstream.records import Completion, FinishReason, Outcome, Reward, VersionSpan

expect = pytest.importorskip("playwright.sync_api").expect
BIDIRECTIONAL = "\u202egnp.exe\u202c"
SPELLINGS = (
    "<b>bold</b>",
    "\x1b[31m",
    BIDIRECTIONAL,
    HOSTILE,
    " ",
    "\n",
    "word",
    " and",
    "\u200b",
    "&amp;",
    "é",
    "語",
)
LONG_STEP = 6


class Console:
    """A page of the console, with what it reported as errors."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.address = address
        self.errors: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._note)
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))

    def open(self, place: str = "") -> None:
        """Show a page, such as `samples?state=trained`, and wait until it is drawn."""
        self.page.goto("about:blank")
        self.page.goto(f"{self.address}#/{place}")
        self.page.locator("main h1").first.wait_for()

    def words(self, selector: str) -> str:
        """Return the text of the first element that a selector names."""
        text: str = self.page.locator(selector).first.inner_text()
        return text

    def becomes(self, selector: str, words: str) -> None:
        """Wait until an element has this text."""
        expect(self.page.locator(selector).first).to_have_text(words, timeout=20_000)

    def _note(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)


def hostile_vocabulary(run_dir: Path) -> None:
    """Spell the tokens of a run as texts that a careless page would obey."""
    vocabulary = {f"{SPELLINGS[i % len(SPELLINGS)]}": i for i in range(len(SPELLINGS))}
    tree = {"model": {"type": "WordLevel", "vocab": vocabulary}, "decoder": None, "added_tokens": []}
    tree["added_tokens"] = [
        {"id": i, "content": SPELLINGS[i % len(SPELLINGS)]} for i in range(len(SPELLINGS), 100)
    ]
    (run_dir / "samples" / "tokenizer.json").write_text(json.dumps(tree), encoding="utf-8")


def long_completion(run_dir: Path, *, tokens: int) -> None:
    """Store a completion of so many tokens at LONG_STEP, with a line feed now and then."""
    random = Random(4)
    ids = tuple(random.choice((6, 7, 6, 7, 6, 7, 5)) for _ in range(tokens))
    completion = Completion(
        token_ids=ids,
        logprobs=tuple(-random.random() for _ in ids),
        mask=(1,) * tokens,
        spans=(
            VersionSpan(version=1, start=0, end=tokens // 2),
            VersionSpan(version=3, start=tokens // 2, end=tokens),
        ),
        finish_reason=FinishReason.LENGTH,
        text="long",
        rewards=(Reward(name="exact_match", value=0.5, outcome=Outcome.SCORE),),
    )
    with writing(run_dir, version=LONG_STEP - 1) as writer:
        writer.put(LONG_STEP, [group("long", [completion])], values_of(random, [tokens]))
        writer.wait()
