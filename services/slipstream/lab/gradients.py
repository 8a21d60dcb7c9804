"""The products of any two of many gradients, in bounded memory.

If all gradients together have at most MOST_NUMBERS numbers, each is kept, and norms and cosines are exact.
Otherwise each is kept as a random projection to SKETCH numbers: every number of the gradient, with a random
sign, is added to one of them. A product of two projections is that of the gradients, with an error of about
1 / √SKETCH = 0.001 of the product of their norms. See Finding Frequent Items in Data Streams, Charikar, Chen
and Farach-Colton (2002).

Suffixes: _P numbers of a gradient, _K numbers of a projection, _CC any two of the gradients.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import torch
from torch import Tensor

MOST_NUMBERS: Final = 2**28
"""1 GiB."""
SKETCH: Final = 1_048_573
"""A prime, so that no number collects a row or a column of the weights."""
BLOCK: Final = 2**20


class Gradients:
    """Gradients of the same parameters, of which norms and cosines are computed."""

    def __init__(self, parameters: Sequence[Tensor], count: int) -> None:
        """Take the parameters, and the number of gradients that are added at most."""
        self._parameters = parameters
        numbers = sum(parameter.numel() for parameter in parameters)
        self.exact = numbers * count <= MOST_NUMBERS
        """Whether each gradient is kept in full."""
        self._signs = None if self.exact else _signs(numbers, parameters[0].device)
        self._vectors: list[Tensor] = []

    def add(self) -> None:
        """Add what the parameters have as their gradient now; none counts as 0."""
        self._vectors.append(
            torch.cat(list(self._pieces())) if self._signs is None else self._sketch(self._signs)
        )

    def products(self) -> Tensor:
        """Return the products [C, C] of any two gradients, float64."""
        count = len(self._vectors)
        products_CC = torch.zeros(count, count, dtype=torch.float64)
        for start in range(0, len(self._vectors[0]) if count else 0, BLOCK):
            block = torch.stack([vector[start : start + BLOCK].double() for vector in self._vectors])
            products_CC += (block @ block.T).cpu()
        return products_CC

    def _pieces(self) -> Iterator[Tensor]:
        for parameter in self._parameters:
            gradient = parameter.grad
            yield (torch.zeros_like(parameter) if gradient is None else gradient).detach().flatten().float()

    def _sketch(self, signs_P: Tensor) -> Tensor:
        sketch_K = torch.zeros(SKETCH, device=signs_P.device)
        start = 0
        for piece in self._pieces():
            signed = piece * signs_P[start : start + len(piece)]
            lead = start % SKETCH
            padded = torch.nn.functional.pad(signed, (lead, -(lead + len(piece)) % SKETCH))
            sketch_K += padded.view(-1, SKETCH).sum(0)
            start += len(piece)
        return sketch_K


def cosines(products_CC: Tensor) -> Tensor:
    """Return the cosines [C, C] of vectors with these products; NaN for a vector of 0."""
    norms_C = products_CC.diagonal().sqrt()
    return products_CC / (norms_C[:, None] * norms_C)


def _signs(numbers: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (numbers,), generator=generator, dtype=torch.int8).mul_(2).sub_(1).to(device)
