"""The verifier's cache of verdicts: its keys, its eviction, and verdicts that it does not keep."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from slipstream.config.rewards import FormatConfig, RewardSection
from slipstream.records import Outcome, Prompt
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.adapters import Concurrently
from slipstream.verifier.admission import AdmissionQueue
from slipstream.verifier.cache import RewardCache, VerdictCache
from slipstream.verifier.reward import Answer, UnusableGroundTruth, Verdict, failed, invalid
from verifier.scoring import answer

CONFIG = FormatConfig(name="tags", pattern="x")


def prompt(truth: str = "2", **fields: str) -> Prompt:
    return Prompt(prompt_id="p", task="t", text="?", answer=truth, fields=fields)


class Costly:
    """A judge that records its calls, and waits for `hold`."""

    def __init__(self, *, hold: asyncio.Event | None = None) -> None:
        self.asked: list[str] = []
        self.hold = hold

    async def __call__(self, prompt: Prompt, answer: Answer) -> Verdict:
        self.asked.append(answer.text)
        if self.hold is not None:
            await self.hold.wait()
        match answer.text:
            case "error":
                return failed("no luck")
            case "raise":
                raise OSError("disk on fire")
            case "unusable":
                raise UnusableGroundTruth(f"prompt {prompt.prompt_id}")
            case "":
                return invalid("empty answer")
        return Verdict(value=float(len(answer.text)))


class Bench:
    """A costly judge with a cache of `entries` verdicts."""

    def __init__(self, entries: int = 100, *, hold: asyncio.Event | None = None) -> None:
        self.metrics = Metrics()
        self.cache = VerdictCache(entries, metrics=self.metrics)
        self.costly = Costly(hold=hold)
        self.reward = Concurrently(self.costly, cache=self.reward_cache())

    def reward_cache(self, config: RewardSection = CONFIG) -> RewardCache:
        return RewardCache(
            self.cache,
            config,
            reads=lambda prompt: (prompt.answer, prompt.fields.get("unit", "")),
            queue=AdmissionQueue(1024, metrics=self.metrics),
        )

    async def score(self, asked_prompt: Prompt, *texts: str) -> list[Verdict]:
        return await self.reward.score(asked_prompt, [answer(text) for text in texts])

    def hits(self) -> float | None:
        return self.metrics.registry.get_sample_value(
            "slipstream_verdict_cache_hits_total", {"reward": "tags"}
        )


def played(bench: Bench, *groups: Sequence[str]) -> list[list[Verdict]]:
    async def play() -> list[list[Verdict]]:
        return [await bench.score(prompt(), *group) for group in groups]

    return asyncio.run(play())


def test_a_verdict_is_cached_and_the_hit_is_counted() -> None:
    bench = Bench()
    first, second = played(bench, ["aa", ""], ["", "aa"])
    assert [v.value for v in first] == [2, 0]
    assert second == first[::-1]
    assert (bench.costly.asked, bench.hits()) == (["aa", ""], 2)


def test_equal_answers_of_a_group_are_judged_once() -> None:
    bench = Bench()
    (verdicts,) = played(bench, ["a", "bb", "a", "a"])
    assert [v.value for v in verdicts] == [1, 2, 1, 1]
    assert bench.costly.asked == ["a", "bb"]


def test_an_error_is_never_cached() -> None:
    bench = Bench()
    first, _ = played(bench, ["error", "raise"], ["error", "raise"])
    assert [v.outcome for v in first] == [Outcome.ERROR, Outcome.ERROR]
    assert first[1].detail == "OSError: disk on fire"
    assert bench.costly.asked == ["error", "raise"] * 2
    assert bench.hits() == 0


def test_the_least_recently_used_verdict_is_evicted_first() -> None:
    bench = Bench(entries=2)
    played(bench, ["a"], ["b"], ["a"], ["c"], ["a"], ["b"])
    assert bench.costly.asked == ["a", "b", "c", "b"]


@pytest.mark.parametrize(
    "other",
    [
        (prompt("3"), CONFIG, "a"),
        (prompt("2", unit="kg"), CONFIG, "a"),
        (prompt(), CONFIG, "a "),
        (prompt("2a"), CONFIG, ""),
        (prompt(), FormatConfig(name="tags", pattern="y"), "a"),
    ],
)
def test_a_key_has_everything_that_a_verdict_depends_on(other: tuple[Prompt, RewardSection, str]) -> None:
    bench, (other_prompt, config, text) = Bench(), other
    assert bench.reward_cache().key(prompt(), answer("a")) != bench.reward_cache(config).key(
        other_prompt, answer(text)
    )


@pytest.mark.parametrize(
    ("other_prompt", "config"),
    [
        (prompt("2", other="unread"), CONFIG),
        (prompt(), FormatConfig(name="tags", pattern="x", weight=3)),
        (prompt(), FormatConfig(name="renamed", pattern="x")),
    ],
)
def test_a_key_has_nothing_that_a_verdict_does_not_depend_on(
    other_prompt: Prompt, config: RewardSection
) -> None:
    bench = Bench()
    assert bench.reward_cache().key(prompt(), answer("a")) == bench.reward_cache(config).key(
        other_prompt, answer("a")
    )


def test_a_running_verdict_is_cached_although_its_caller_gave_up() -> None:
    async def play() -> tuple[list[Verdict], list[str]]:
        hold = asyncio.Event()
        bench = Bench(hold=hold)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bench.score(prompt(), "a"), 0.02)
        again = asyncio.create_task(bench.score(prompt(), "a"))
        await asyncio.sleep(0)
        hold.set()
        return await again, bench.costly.asked

    assert asyncio.run(play()) == ([Verdict(value=1)], ["a"])


def test_an_unusable_ground_truth_refuses_the_group() -> None:
    with pytest.raises(UnusableGroundTruth):
        played(Bench(), ["a", "unusable", "b", "unusable"])


def test_two_prompts_with_the_same_unusable_truth_are_both_named() -> None:
    prompts = [replace(prompt(), prompt_id=name) for name in ("one", "other")]

    async def play() -> list[object]:
        bench = Bench()
        calls = [bench.score(asked_prompt, "unusable", "unusable") for asked_prompt in prompts]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    assert [str(error) for error in asyncio.run(play())] == ["prompt one", "prompt other"]


def test_closing_cancels_verdicts_that_no_caller_waits_for() -> None:
    async def play() -> None:
        bench = Bench(hold=asyncio.Event())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(bench.score(prompt(), "a"), 0.02)
        await asyncio.wait_for(bench.reward.close(), 5)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(play())
