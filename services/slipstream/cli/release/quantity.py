"""Kubernetes' quantities, such as `128Gi`, as numbers of bytes."""

import re

FACTORS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
QUANTITY = re.compile(r"([0-9.]+)([A-Za-z]*)")


def size_of(quantity: object) -> int | None:
    """Return the bytes of a quantity of memory or storage; None for a quantity in another form."""
    match = QUANTITY.fullmatch(str(quantity))
    factor = {**FACTORS, **BINARY}.get(match[2]) if match else None
    return None if match is None or factor is None else int(float(match[1]) * factor)
