"""A cache of verdicts: in training, the same answer to the same prompt is sampled again and again."""

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
"""Returns the parts of a prompt on which a verdict depends."""


class VerdictCache:
    """The cached verdicts of all rewards of a verifier; the least recently used verdict is evicted first.

    Invariant: it holds at most `entries` verdicts, and never an error.
    """

    def __init__(self, entries: int, *, metrics: Metrics) -> None:
        self._entries = entries
        self._metrics = metrics
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()

    def get(self, key: bytes, reward: str) -> Verdict | None:
        """Return the verdict under a key, and count a hit of the reward."""
        verdict = self._verdicts.get(key)
        if verdict is not None:
            self._verdicts.move_to_end(key)
            self._metrics.count("verdict_cache_hits_total", reward=reward)
        return verdict

    def expect(self, reward: str) -> None:
        """Export the hits of a reward from 0."""
        self._metrics.count("verdict_cache_hits_total", 0, reward=reward)

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Add a verdict."""
        assert verdict.outcome is not Outcome.ERROR, "an error is worth another try"
        self._verdicts[key] = verdict
        while len(self._verdicts) > self._entries:
            self._verdicts.popitem(last=False)


class RewardCache:
    """One reward's part of the cache, for a reward whose verdict depends on the parts of the key alone.

    The key: the reward's configuration, the parts of the prompt that it reads, and the text of the answer.
    """

    def __init__(
        self, cache: VerdictCache, config: RewardSection, *, reads: Reads, queue: AdmissionQueue
    ) -> None:
        self._cache = cache
        self._queue = queue
        self._reward = config.name
        cache.expect(config.name)
        self._reads = reads
        self._prefix = json.dumps(config.model_dump(mode="json", exclude={"name", "weight"}), sort_keys=True)

    def key(self, prompt: Prompt, answer: Answer) -> bytes:
        """Return the digest of all that the verdict depends on."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in (self._prefix, *self._reads(prompt), answer.text):
            data = part.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
        return digest.digest()

    def get(self, key: bytes) -> Verdict | None:
        """Return the verdict under a key."""
        return self._cache.get(key, self._reward)

    def put(self, key: bytes, verdict: Verdict) -> None:
        """Add a verdict that is not an error."""
        self._cache.put(key, verdict)

    def hold_until_done(self, verdict: asyncio.Task[Verdict]) -> None:
        """Hold a slot of the admission queue for a verdict whose caller gave up."""
        self._queue.hold_until_done(verdict)
