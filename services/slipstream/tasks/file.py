"""A prompt source over the rows of a file: shuffled anew each epoch, with some rows held out."""

from collections.abc import Sequence
from random import Random

from slipstream.config.data import FileData
from slipstream.tasks.rows import read_prompts
from slipstream.tasks.split import in_fraction
from slipstream.types import Prompt

# The epoch being leased and the one before it, which late leases may still ask for.
ORDERS_KEPT = 2


class FileSource:
    """A PromptSource over loaded rows. Invariant: each training row comes once an epoch."""

    def __init__(self, training: Sequence[Prompt], held_out: Sequence[Prompt], *, seed: int) -> None:
        assert training, "load_file keeps a row on each side"
        assert held_out, "load_file keeps a row on each side"
        self._training = training
        self._held_out = held_out
        self._seed = seed
        self._orders: dict[int, list[int]] = {}

    @property
    def size(self) -> int:
        """How many training rows there are."""
        return len(self._training)

    @property
    def held_out_size(self) -> int:
        """How many distinct held-out prompts there are."""
        return len(self._held_out)

    def training(self, index: int) -> Prompt:
        """A row to train on; `index // rows` is the epoch."""
        epoch, position = divmod(index, len(self._training))
        return self._training[self._order(epoch)[position]]

    def held_out(self, index: int) -> Prompt:
        """A held-out row, in the order of the file; repeated from `held_out_size` on."""
        return self._held_out[index % len(self._held_out)]

    def demonstration(self, index: int) -> tuple[Prompt, str]:
        """The training row of the same index, with its ground truth as the answer."""
        prompt = self.training(index)
        return prompt, prompt.answer

    def _order(self, epoch: int) -> list[int]:
        if epoch not in self._orders:
            if len(self._orders) == ORDERS_KEPT:
                del self._orders[next(iter(self._orders))]
            order = list(range(len(self._training)))
            Random(f"{self._seed}/epoch/{epoch}").shuffle(order)
            self._orders[epoch] = order
        return self._orders[epoch]


def load_file(data: FileData, *, seed: int) -> FileSource:
    """Read the rows and split them; a training row whose prompt is held out is left out.

    Errors: ValueError for a malformed file, or when a side of the split has no rows.
    """
    rows = read_prompts(data.path, data)
    held_out = _held_out_rows(rows, data)
    reserved = set(held_out)
    training = [row for row in rows if canonical(row) not in reserved]
    if not held_out or not training:
        raise ValueError(f"{data.path}: {_advice(data, len(rows), 'training' if held_out else 'held-out')}")
    return FileSource(training, tuple(held_out.values()), seed=seed)


def canonical(prompt: Prompt) -> str:
    """The prompt's words, whatever the white space between them: equal for duplicates."""
    turns = [f"{turn.role}: {turn.content}" for turn in prompt.messages]
    return " ".join("\n".join([prompt.text, *turns]).split())


def _held_out_rows(rows: Sequence[Prompt], data: FileData) -> dict[str, Prompt]:
    """Canonical text → row, without duplicates, in the order of the file."""
    if data.held_out_path is not None:
        return {canonical(row): row for row in read_prompts(data.held_out_path, data)}
    return {text: row for row in rows if in_fraction(text := canonical(row), data.held_out_fraction)}


def _advice(data: FileData, rows: int, side: str) -> str:
    if data.held_out_path is not None:
        return f"no {side} rows: every prompt of the {rows} is also in {data.held_out_path}"
    return (
        f"no {side} rows: {rows} rows cannot be split by held_out_fraction={data.held_out_fraction:g}; "
        "give more rows, another fraction, or a held_out_path"
    )
