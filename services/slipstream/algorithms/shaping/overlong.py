"""The soft penalty on the length of a completion."""

from slipstream.algorithms.spec.shaping import SoftOverlong


def soft_overlong(length: int, spec: SoftOverlong) -> float:
    """Return what is added to the reward of a completion of `length` tokens: 0, or a penalty below 0.

    With excess = (length - safe_len) / (max_len - safe_len): -factor · max(0, excess), and never less than
    -factor with the floor. See DAPO, arXiv:2503.14476, equation 13.
    Errors: ValueError when safe_len and max_len are not resolved, or do not rise.
    """
    if spec.safe_len is None or spec.max_len is None:
        raise ValueError(
            f"soft_overlong: got safe_len {spec.safe_len!r} and max_len {spec.max_len!r}, needs two numbers"
        )
    if not spec.safe_len < spec.max_len:
        raise ValueError(
            f"soft_overlong.max_len: got {spec.max_len}, needs more than safe_len, {spec.safe_len}"
        )
    if length <= spec.safe_len:
        return 0.0
    excess = (length - spec.safe_len) / (spec.max_len - spec.safe_len)
    return -spec.factor * (min(1.0, excess) if spec.floor else excess)
