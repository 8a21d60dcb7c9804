"""When the phases of a group began and ended, in its actor and in the learner: seconds since 1970."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTime:
    """The first tokens that a group got from a rollout."""

    rollout: str
    first_token: float
    """When they arrived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTimes:
    """The phases of a group in its actor, by the clock of the actor."""

    leased: float
    """The actor received the lease."""
    placed: float
    """The group got a place at a rollout."""
    rollouts: tuple[RolloutTime, ...] = ()
    """The rollouts that sampled it, one after the other; none if no token was sampled."""
    sampled: float
    """Its last completion was sampled."""
    scored: float
    """Its last completion was scored."""
    inserted: float
    """The actor sent it to replay for the first time."""

    @property
    def first_token(self) -> float | None:
        """When its first token arrived; None if no token was sampled."""
        return self.rollouts[0].first_token if self.rollouts else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The phases of a batch in the learner, by the clock of the learner."""

    training: float
    """Its step began."""
    trained: float
    """Its step ended."""
