"""The experts that a mixture-of-experts engine chose, recorded for the learner."""

from dataclasses import dataclass, field, replace


class RoutingMismatch(ValueError):
    """Recorded experts do not fit their tokens or their model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedExperts:
    """The experts that an engine chose, [tokens, layers, top_k] ids in row-major order, little-endian.

    They cover the first `tokens` tokens of prompt and completion. `layers` counts every hidden layer of the
    model; in a layer without experts the ids are undefined. Errors: RoutingMismatch when `ids` has another
    size.
    """

    tokens: int
    layers: int
    top_k: int
    id_bytes: int
    """Size of one id in bytes: 1 or 2."""
    ids: bytes = field(repr=False)

    def __post_init__(self) -> None:
        shape = (self.tokens, self.layers, self.top_k)
        if self.id_bytes not in (1, 2) or min(shape) < 1:
            raise RoutingMismatch(
                f"routed experts: got shape {list(shape)} with ids of {self.id_bytes} bytes, needs at least "
                "one of each, and ids of 1 or 2 bytes"
            )
        if len(self.ids) != self.tokens * self.token_bytes:
            raise RoutingMismatch(
                f"routed experts: shape {list(shape)} with ids of {self.id_bytes} bytes needs "
                f"{self.tokens * self.token_bytes} bytes, got {len(self.ids)}"
            )

    @property
    def token_bytes(self) -> int:
        """Size of the ids of one token in bytes."""
        return self.layers * self.top_k * self.id_bytes

    def until(self, end: int) -> "RoutedExperts":
        """Return the experts of the first `end` tokens. Errors: RoutingMismatch for fewer than 1."""
        kept = min(end, self.tokens)
        return replace(self, tokens=kept, ids=self.ids[: max(kept, 0) * self.token_bytes])

    def followed_by(self, later: "RoutedExperts") -> "RoutedExperts":
        """Return these experts, continued by those of `later` for further tokens. Errors: RoutingMismatch."""
        if (self.layers, self.top_k, self.id_bytes) != (later.layers, later.top_k, later.id_bytes):
            raise RoutingMismatch("routed experts: two turns of one completion have other layers or top_k")
        more = later.ids[self.tokens * self.token_bytes :]
        return replace(self, tokens=max(self.tokens, later.tokens), ids=self.ids + more)
