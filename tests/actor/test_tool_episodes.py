"""Episodes with tools, over losses and weight updates: what is trained is what the engines sampled."""

import asyncio
import re
from typing import Any

import pytest
from actor import rollout_servers
from actor.rollout_servers import Fleet, fleet, logprob
from actor.test_chat_tools import QWEN, call, environment
from hypothesis import given, settings
from hypothesis import strategies as st
from rollout.fakes import prompt, scenario
from slipstream.actor.environment import EpisodeBounds
from slipstream.actor.episode_run import Played, run_episode
from slipstream.actor.sampler import Watch
from slipstream.records import Completion, Sampling, Turn

ASSISTANT = "<|im_start|>assistant\n"
(END,) = QWEN.encode_text("<|im_end|>")
CALLS = {
    "sum": call("calculate", a=2, b="3"),
    "two": call("calculate", a=1, b=1) + call("table", rows=[4, 5]),
    "fails": call("broken", word="ab"),
    "unknown": call("nothing"),
    "unreadable": "<tool_call>\n{not json\n</tool_call>",
}
"""What a turn writes; each of them is followed by another turn."""
Script = list[str]


def turns_of(script: Script) -> list[str]:
    """Return the texts of the turns of a policy, the answer last."""
    return [*(f"I try. {CALLS[kind]}" for kind in script), "done"]


def policy(scripts: list[Script]) -> Any:
    """Return the function of an engine: the next token is that of the script that the prompt names."""

    def next_token(context: tuple[int, ...]) -> int:
        text = QWEN.decode_with_special(context)
        number = re.search(r"script (\d+)", text)
        assert number is not None
        before, _, written = text.rpartition(ASSISTANT)
        rest = turns_of(scripts[int(number[1])])[before.count(ASSISTANT)].removeprefix(written)
        return QWEN.encode_text(rest)[0] if rest else END

    return next_token


async def play(actor: Fleet, number: int) -> Played:
    async with actor.rollouts.place(f"g{number}") as place:

        async def sample(token_ids: tuple[int, ...], max_tokens: int, watch: Watch | None = None) -> Turn:
            return await place.sample(token_ids, Sampling(temperature=1.0, max_tokens=max_tokens), watch)

        return await run_episode(
            environment("calculate", "table", "broken"),
            prompt(text=f"script {number}"),
            (1,),
            sample=sample,
            tokens=QWEN,
            bounds=EpisodeBounds(max_tokens=4000),
        )


@settings(max_examples=8, deadline=None)
@given(
    scripts=st.lists(st.lists(st.sampled_from(sorted(CALLS)), max_size=3), min_size=1, max_size=3),
    events=st.lists(st.sampled_from(["version", "kill", "drain"]), max_size=4),
)
def test_over_calls_losses_and_updates_the_learner_gets_exactly_what_the_engines_sampled(
    scripts: list[Script], events: list[str]
) -> None:
    @scenario
    async def run() -> None:
        async with fleet(most_engines=20) as actor:
            for version in range(2):
                await actor.add(version=version, step_seconds=0.001)
            running = [asyncio.create_task(play(actor, number)) for number in range(len(scripts))]
            await actor.suffer(events, every=0.03, step_seconds=0.001)
            for script, played in zip(scripts, await asyncio.gather(*running), strict=True):
                assert played.ending == "finished", played.completion.rewards
                check(actor, played.completion, script)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_servers, "next_token", policy(scripts))
        patch.setattr(rollout_servers, "STOP", END)
        run()


def check(actor: Fleet, completion: Completion, script: Script) -> None:
    """Check each sampled token with its logprob and version, and that each call was answered once."""
    context = completion.prompt_token_ids
    assert context is not None
    versions = [span.version for span in completion.spans for _ in range(span.start, span.end)]
    rows = zip(completion.token_ids, completion.mask, completion.logprobs, versions, strict=True)
    for token, sampled, value, version in rows:
        if sampled:
            assert token == rollout_servers.next_token(context)
            assert value == logprob(token)
            assert version in set().union(*(s.engine.sampled_by.get(context, ()) for s in actor.servers))
        context += (token,)
    text = QWEN.decode_with_special(completion.token_ids)
    calls = sum(CALLS[kind].count("<tool_call>") for kind in script)
    assert text.count("<tool_response>") == calls
    trained = [token for token, one in zip(completion.token_ids, completion.mask, strict=True) if one]
    assert QWEN.decode_with_special(trained) == "".join(f"{turn}<|im_end|>" for turn in turns_of(script))
