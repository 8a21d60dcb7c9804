"""Held-out evaluations: their prompts are leased like those of training, and never counted in the ledger."""

from collections.abc import AsyncIterator, Mapping

from slipstream.records import Evaluation, SourceAccuracy
from slipstream.replay import connection, values
from slipstream.replay.selection import Selection
from slipstream.replay.store import READ_BYTES, inserted_from, sources_in
from slipstream.replay.summary import Summary
from slipstream.rpc.errors import NotFound

EVALUATED_BYTES = 16 << 20
"""Most bytes of the groups of an evaluation that the learner has not taken yet."""


class EvaluationStore:
    """The evaluations of one run. Invariant: each held-out prompt is counted exactly once."""

    def __init__(self, scripts: connection.Scripts) -> None:
        self._scripts = scripts

    async def start(
        self,
        version: int,
        *,
        prompts: int,
        samples_per_prompt: int,
        reward: str,
        learner_epoch: int,
        request_id: str,
    ) -> str:
        """Queue the first `prompts` held-out prompts, and return the id of the evaluation.

        Idempotent by `request_id`.

        Errors: Superseded by another learner.
        """
        evaluation_id = await self._scripts.call(
            "start_evaluation", version, prompts, samples_per_prompt, reward, learner_epoch, request_id
        )
        return str(evaluation_id.decode())

    async def insert(
        self,
        group_id: str,
        epoch: int,
        summary: Summary,
        selections: Mapping[str, Selection],
        *,
        reward: str = "",
        payload: bytes = b"",
    ) -> values.Inserted:
        """Count a finished group, with its selections by reward. Idempotent by (group id, epoch).

        `reward`: whose mean is the accuracy of the source of the prompt; empty: that of the evaluation.
        `payload`: the bytes of the group, kept until the learner takes them; empty to keep none. The
        completions of an invalid group count as errors, and are not kept.
        """
        rewards = [
            part
            for name, r in summary.rewards.items()
            for part in (name, repr(r.sum), r.count, *_numbers(selections[name]))
        ]
        answer = await self._scripts.call(
            "insert_evaluation",
            group_id,
            epoch,
            summary.fault,
            summary.completions,
            summary.sampled_tokens,
            summary.version_sum,
            summary.source,
            reward,
            payload,
            EVALUATED_BYTES,
            *rewards,
        )
        return inserted_from(answer)

    async def take(self, evaluation_id: str, start: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield number and bytes of the groups of an evaluation from the number `start` on, in the order of
        arrival.

        Those before `start` are forgotten. Numbers begin at 1, and one is left out whose group was forgotten
        because the groups were over EVALUATED_BYTES.
        """
        following = start
        while flat := await self._scripts.call("take_evaluated", evaluation_id, start, following, READ_BYTES):
            for number, payload in zip(flat[::2], flat[1::2], strict=True):
                yield number, payload
                following = number + 1

    async def get(self, evaluation_id: str) -> Evaluation:
        """Return the state of an evaluation. Errors: NotFound."""
        fields = await self._scripts.read_hash(f"evaluation:{evaluation_id}")
        if not fields:
            raise NotFound(f"there is no evaluation {evaluation_id!r}; start one first")
        numbers = {name.decode(): float(value) for name, value in fields.items() if name != b"reward"}
        completions, tokens = int(numbers.get("completions", 0)), numbers.get("tokens", 0.0)
        ranked, voted = numbers.get("ranked", 0.0), numbers.get("voted", 0.0)
        return Evaluation(
            done=numbers["remaining"] == 0,
            version=int(numbers["version"]),
            completions=completions,
            errors=int(numbers.get("errors", 0)),
            accuracy=numbers.get("sum", 0.0) / completions if completions else None,
            best_of_n=numbers.get("best", 0.0) / ranked if ranked else None,
            majority=numbers.get("majority", 0.0) / voted if voted else None,
            mean_version=numbers.get("versions", 0.0) / tokens if tokens else 0.0,
            by_source={source: _of_source(numbers, source) for source in sources_in(numbers)},
        )


def _of_source(numbers: Mapping[str, float], source: str) -> SourceAccuracy:
    completions = int(numbers[f"completions@{source}"])
    return SourceAccuracy(
        completions=completions,
        errors=int(numbers[f"errors@{source}"]),
        accuracy=numbers[f"sum@{source}"] / completions if completions else None,
    )


def _numbers(selection: Selection) -> tuple[str, str]:
    """Return best and majority as arguments of the script; empty for None."""
    best, majority = ("" if value is None else repr(value) for value in (selection.best, selection.majority))
    return best, majority
