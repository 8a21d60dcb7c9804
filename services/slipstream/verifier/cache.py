"""Verdicts that are known already: in training the same answer to the same prompt comes again and again."""

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable

from slipstream.config.rewards import RewardSection
from slipstream.records import Outcome, Prompt
from slipstream.telemetry.metrics import Metrics
from slipstream.verifier.admission import AdmissionQueue
from slipstream.verifier.reward import Answer, Verdict

DIGEST_BYTES = 16
Reads = Callable[[Prompt], Iterable[str]]
"""What of a prompt a verdict depends on."""


class VerdictCache:
    """The verdicts of all rewards of a verifier, the least recently used forgotten first.

    Invariant: it holds at most `entries` verdicts, and never an error.
    """

    def __init__(self, entries: int, *, metrics: Metrics) -> None:
        self._entries = entries
        self._metrics = metrics
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()

    def get(self, key: bytes, reward: str) -> Verdict | None:
        """The verdict under a key, now the most recently used; a hit is counted."""
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            self._metrics.count("verdict_cache_hits_total", reward=reward)
        return known

    def expect(self, reward: str) -> None:
        """Count the hits of a reward from 0."""
        self._metrics.count("verdict_cache_hits_total", 0, reward=reward)

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Remember a verdict."""
        assert verdict.outcome is not Outcome.ERROR, "an error is worth another try"
        self._known[key] = verdict
        while len(self._known) > self._entries:
            self._known.popitem(last=False)


class RewardCache:
    """What one reward remembers: by its configuration, what it reads of the prompt, and the answer's text.

    Only for a reward whose verdict depends on nothing else.
    """

    def __init__(
        self, cache: VerdictCache, config: RewardSection, *, reads: Reads, queue: AdmissionQueue
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._reward = config.name
        cache.expect(config.name)
        self._reads = reads
        judged_by = config.model_dump(mode="json", exclude={"name", "weight"})
        self._prefix = json.dumps(judged_by, sort_keys=True)

    def key(self, prompt: Prompt, answer: Answer) -> bytes:
        """The digest of all that the verdict depends on."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in (self._prefix, *self._reads(prompt), answer.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()

    def get(self, key: bytes) -> Verdict | None:
        """The verdict under a key."""
        return self._cache.get(key, self._reward)

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Remember a verdict that is not an error."""
        self._cache.put(key, verdict)

    def hold_until_done(self, verdict: asyncio.Task[Verdict]) -> None:
        """A verdict is still to come, and who asked for it has given up."""
        self._queue.hold_until_done(verdict)
