"""A prompt source over rows, for example of a file: shuffled in each epoch, with some rows held out."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

from slipstream.config.data import FileData
from slipstream.prompts import reading, split
from slipstream.prompts.rows import Example, Origin, read_examples
from slipstream.records import Prompt

# Late leases may still need the order of the epoch before the current one.
ORDERS_KEPT = 2


class RowSource:
    """A PromptSource over loaded rows. Invariant: each training row occurs once per epoch."""

    def __init__(self, training: Sequence[Example], held_out: Sequence[Prompt], *, seed: int) -> None:
        assert training, "split_rows returns rows for both sides"
        assert held_out, "split_rows returns rows for both sides"
        self._training = training
        self._held_out = held_out
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    @property
    def size(self) -> int:
        """Number of training rows."""
        return len(self._training)

    @property
    def held_out_size(self) -> int:
        """Number of distinct held-out prompts."""
        return len(self._held_out)

    def training(self, index: int) -> Prompt:
        """Return the training prompt of an index; `index // size` is the epoch."""
        return self._example(index).prompt

    def held_out(self, index: int) -> Prompt:
        """Return a held-out prompt, in the order of the file; prompts repeat from `held_out_size` on."""
        return self._held_out[index % len(self._held_out)]

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """Return the training prompt of an index, with its demonstration or else its ground truth."""
        example = self._example(index)
        return example.prompt, example.demonstration or example.prompt.answer

    def _example(self, index: int) -> Example:
        epoch, position = divmod(index, len(self._training))
        return self._training[self._order(epoch)[position]]

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            if len(self._orders) == ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = list(range(len(self._training)))
            Random(f"{self._seed}/epoch/{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]


def load_file(data: FileData, *, seed: int) -> RowSource:
    """Read and split the rows of a file; rows whose prompt is held out are not trained on.

    Errors: ValueError for a malformed file, or when a side of the split has no rows.
    """
    rows = _examples(data.path, data, demonstrated=True)
    held_out = data.held_out_path
    held_out_rows = None if held_out is None else _examples(held_out, data, demonstrated=False)
    advice = f"every prompt of the {len(rows)} is also in {data.held_out_path}"
    return split_rows(
        rows,
        held_out_rows,
        fraction=data.held_out_fraction,
        name=str(data.path),
        no_training=advice,
        seed=seed,
    )


def split_rows(
    rows: Sequence[Example],
    held_out_rows: Sequence[Example] | None,
    *,
    fraction: float,
    name: str,
    no_training: str,
    seed: int,
) -> RowSource:
    """Return a source over rows; without `held_out_rows`, a hash holds out a `fraction` of the prompts.

    Errors: ValueError naming `name` if a side has no rows. `no_training` is the reason in that message if
    `held_out_rows` are given and the training side is empty.
    """
    if held_out_rows is not None:
        held_out = {canonical(row.prompt): row.prompt for row in held_out_rows}
    else:
        held_out = {
            text: row.prompt for row in rows if split.in_fraction(text := canonical(row.prompt), fraction)
        }
    training = [row for row in rows if canonical(row.prompt) not in held_out]
    if held_out and training:
        return RowSource(training, tuple(held_out.values()), seed=seed)
    side = "training" if held_out else "held-out"
    if held_out_rows is not None:
        raise ValueError(f"{name}: no {side} rows: {no_training}")
    raise ValueError(
        f"{name}: no {side} rows: {len(rows)} rows cannot be split by held_out_fraction={fraction:g}; "
        "add rows, change the fraction, or name a file or split of held-out rows"
    )


def canonical(prompt: Prompt) -> str:
    """Return the words of a prompt with single spaces between them; equal for duplicates."""
    turns = [f"{turn.role}: {turn.content}" for turn in prompt.messages]
    return " ".join("\n".join([prompt.text, *turns]).split())


def _examples(path: Path, data: FileData, *, demonstrated: bool) -> list[Example]:
    path = path.expanduser()
    origin = Origin(name=str(path), short=path.name, task=path.stem, unit="line")
    return read_examples(reading.read_rows(path), origin, data, demonstrated=demonstrated)
