"""The text of tokens that come one by one, and the stop strings in it, against slow references."""

from collections.abc import Sequence

from actor.chat_templates import MERGES, QWEN3, byte_tokens
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slipstream.actor.chat.token_text import TokenText
from slipstream.actor.chat.turn_reader import Piece, StopFound, TurnReader
from slipstream.records import Chunk, VersionSpan, joined
from tokenizers import Tokenizer, decoders, models

TOKENS = byte_tokens(QWEN3)
TEXTS = st.text(alphabet="abAB \n.<|é你😀\ufffd", max_size=40)
BYTES = st.lists(st.integers(0, 255 + len(MERGES)), max_size=120)
STOPS = st.lists(st.text(alphabet="abAB \n.é你", min_size=1, max_size=4), max_size=4)


def chunk(ids: Sequence[int]) -> Chunk:
    spans = (VersionSpan(version=1, start=0, end=len(ids)),) if ids else ()
    return Chunk(token_ids=tuple(ids), logprobs=tuple(-each / 512 for each in ids), spans=spans)


@settings(max_examples=400, deadline=None)
@given(ids=BYTES)
@example(ids=[0xE4, 0xBD, 0xA0])
@example(ids=[255] * 100)
def test_the_text_of_tokens_one_by_one_is_that_of_all_tokens(ids: list[int]) -> None:
    text = TokenText(TOKENS.decode_with_special)
    for token in ids:
        before = text.settled
        text.add(token)
        assert text.settled.startswith(before)
        assert TOKENS.decode_with_special(ids).startswith(text.settled), "nothing is taken back"
    assert text.whole() == TOKENS.decode_with_special(ids)


def test_a_character_of_several_tokens_comes_whole() -> None:
    text, settled = TokenText(TOKENS.decode), []
    for token in TOKENS.encode_text("a你b😀"):
        text.add(token)
        settled.append(text.settled)
    assert settled == ["a", "a", "a", "a你", "a你b", "a你b", "a你b", "a你b", "a你b😀"]


def test_the_spaces_of_a_tokenizer_that_drops_the_first_one_are_kept() -> None:
    vocabulary = {"▁one": 0, "▁two": 1, "s": 2}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.decoder = decoders.Metaspace()
    text = TokenText(lambda ids: tokenizer.decode(list(ids)))
    ids = [0, 1, 2] * 30
    for token in ids:
        text.add(token)
    assert text.whole() == tokenizer.decode(ids)


def slow_end(ids: Sequence[int], stop: Sequence[str]) -> tuple[int | None, str]:
    """Return the number of tokens up to the first stop string, and the text before it, character by
    character of the text of each beginning."""
    for size in range(len(ids) + 1):
        text = TokenText(TOKENS.decode_with_special)
        for token in ids[:size]:
            text.add(token)
        for end in range(len(text.settled) + 1):
            ended = [each for each in stop if text.settled[:end].endswith(each)]
            if ended:
                return size, text.settled[: end - max(map(len, ended))]
    return None, TOKENS.decode_with_special(ids)


@settings(max_examples=400, deadline=None)
@given(text=TEXTS, stop=STOPS, sizes=st.lists(st.integers(1, 7), min_size=1, max_size=20))
@example(text="aab", stop=["ab", "b"], sizes=[1])
@example(text="a\n\nb", stop=["\n"], sizes=[3])
def test_a_turn_ends_with_the_token_that_completes_a_stop_string_however_it_is_cut_into_chunks(
    text: str, stop: list[str], sizes: list[int]
) -> None:
    ids = TOKENS.encode_text(text)
    pieces: list[Piece] = []
    reader = TurnReader(TOKENS.decode_with_special, stop=stop, on_piece=pieces.append)
    position, end = 0, None
    for size in sizes * len(ids):
        if position >= len(ids) or end is not None:
            break
        kept = reader(chunk(ids[position : position + size]))
        end = None if kept is None else position + kept
        position += size
    wanted_end, wanted_text = slow_end(ids, stop)
    assert (end, reader.text) == (wanted_end, wanted_text)
    for piece in pieces:
        assert wanted_text.startswith(piece.text), "no character is taken back"
    assert joined([piece.chunk for piece in pieces]).token_ids == ids[:end]
    if end is not None:
        assert "".join((reader.text, *reader.behind)) == TOKENS.decode_with_special(ids[:end])


def test_the_text_that_may_be_the_beginning_of_a_stop_string_is_held_back() -> None:
    reader = TurnReader(TOKENS.decode_with_special, stop=["\nObservation:"])
    assert reader(chunk(TOKENS.encode_text("So.\nObs"))) is None
    assert reader.visible == "So."
    assert reader(chunk(TOKENS.encode_text("cure"))) is None
    assert reader.visible == "So.\nObscure"
    assert reader(chunk(TOKENS.encode_text("\nObservation: 4"))) == 13
    assert (reader.visible, reader.stopped) == ("So.\nObscure", StopFound(start=11, end=24))


def test_an_end_of_turn_is_no_text_if_it_is_the_last_token_only() -> None:
    end = TOKENS.encode_text("<|im_end|>")
    reader = TurnReader(TOKENS.decode_with_special, ends=TOKENS.ends)
    reader(chunk([*TOKENS.encode_text("a"), *end]))
    assert reader.text == "a"
    reader(chunk([*TOKENS.encode_text("b"), *end]))
    assert reader.text == "a<|im_end|>b"
