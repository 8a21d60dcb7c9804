"""Whether the rewards of a group differ, so that the group has a gradient."""

from collections.abc import Sequence


def has_variance(task_rewards_G: Sequence[float], tolerance: float) -> bool:
    """Whether the task rewards of one group differ by more than `tolerance`; without rewards, they do not.

    The range is compared, not the deviation: three times 0.1 · 3 is no variance, whatever the rounding.
    See DAPO, arXiv:2503.14476, equation 11.
    """
    return bool(task_rewards_G) and max(task_rewards_G) - min(task_rewards_G) > tolerance
