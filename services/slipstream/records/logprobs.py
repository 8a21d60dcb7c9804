"""Log-probabilities beside those of the sampled tokens: the teacher's, and the likeliest tokens."""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLogprobs:
    """A teacher's logprobs of the tokens of a completion, in nats, after temperature.

    The bytes are little-endian, row-major. Errors: ValueError when their size does not fit the shapes.
    """

    logprobs: bytes = field(repr=False)
    """Logprobs of the tokens of the completion, [tokens] float32."""
    top_k: int = 0
    """Number of the likeliest tokens at each position."""
    top_ids: bytes = field(default=b"", repr=False)
    """[tokens, top_k] uint32."""
    top_logprobs: bytes = field(default=b"", repr=False)
    """[tokens, top_k] float32."""

    def __post_init__(self) -> None:
        sizes = (len(self.top_ids), len(self.top_logprobs))
        wanted = len(self.logprobs) * self.top_k
        if len(self.logprobs) % 4 or self.top_k < 0 or sizes != (wanted, wanted):
            raise ValueError(
                f"teacher logprobs: {len(self.logprobs)} bytes of logprobs and top_k {self.top_k} need "
                f"{wanted} bytes of ids and of their logprobs, got {sizes[0]} and {sizes[1]}"
            )

    @property
    def tokens(self) -> int:
        """Number of tokens covered."""
        return len(self.logprobs) // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprobs:
    """The likeliest tokens at each position that the policy sampled, under that policy.

    The bytes are little-endian, row-major. Tokens that an environment inserted have no row.
    Errors: ValueError when the bytes are not whole rows.
    """

    top_k: int
    """Number of the likeliest tokens at each position, at least 1."""
    ids: bytes = field(repr=False)
    """[sampled tokens, top_k] uint32."""
    logprobs: bytes = field(repr=False)
    """[sampled tokens, top_k] float32, nats, after temperature; -inf for a token that cannot be sampled."""

    def __post_init__(self) -> None:
        sizes = len(self.ids), len(self.logprobs)
        if self.top_k < 1 or sizes[0] != sizes[1] or sizes[0] % (4 * self.top_k):
            raise ValueError(
                f"top logprobs: got {sizes[0]} bytes of ids and {sizes[1]} of logprobs with top_k "
                f"{self.top_k}, needs as many of both, 4 for each of at least one token at a position"
            )

    @property
    def tokens(self) -> int:
        """Number of sampled tokens covered."""
        return len(self.ids) // (4 * self.top_k)

    def since(self, start: int) -> "TopLogprobs":
        """Return the logprobs of the sampled tokens from position `start` on."""
        skipped = 4 * self.top_k * start
        return replace(self, ids=self.ids[skipped:], logprobs=self.logprobs[skipped:])

    def until(self, end: int) -> "TopLogprobs":
        """Return the logprobs of the sampled tokens before position `end`."""
        kept = 4 * self.top_k * end
        return replace(self, ids=self.ids[:kept], logprobs=self.logprobs[:kept])

    def followed_by(self, later: "TopLogprobs") -> "TopLogprobs":
        """Return these logprobs, followed by those of a later turn. Errors: ValueError for another top_k."""
        if self.top_k != later.top_k:
            raise ValueError(
                f"top logprobs: two turns of one completion have top_k {self.top_k} and {later.top_k}"
            )
        return replace(self, ids=self.ids + later.ids, logprobs=self.logprobs + later.logprobs)
