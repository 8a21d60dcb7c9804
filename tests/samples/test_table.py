"""A stored row has exactly the tokens of its completion, with the values of its own tokens beside them."""

from math import exp, isnan
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples.made_up import completion, group, values_of
from slipstream.records import ChatMessage
from slipstream.records.completion import sampling_order
from slipstream.samples.table import SCHEMA, StoredGroup, make_table, trained_groups

WEIGHTS = {"exact_match": 2.0}
TRAINED = ("logprobs", "entropies", "advantages", "gates", "sides", "trained")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shape=st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=3), max_size=3),
)
def test_each_token_stands_beside_its_own_values(seed: int, shape: list[list[int]]) -> None:
    random = Random(seed)
    groups = [
        group(f"g{n}", [completion(random, segments=size) for size in sizes]) for n, sizes in enumerate(shape)
    ]
    completions = [each for one in groups for each in one.completions]
    values = values_of(random, [each.sampled for each in completions], reference=bool(seed % 2))
    table = make_table(5, trained_groups(groups), values, weights=WEIGHTS, time=1.5)
    assert table.schema == SCHEMA
    rows = table.to_pylist()
    by_token = {
        (int(c), int(o)): index
        for index, (c, o) in enumerate(zip(values.completion_N, values.order_N, strict=True))
    }
    for number, (row, one) in enumerate(zip(rows, completions, strict=True)):
        assert row["token_ids"] == [t for segment in one.segments for t in segment.token_ids]
        assert row["mask"] == [bool(m) for segment in one.segments for m in segment.mask]
        assert row["rollout_logprobs"] == pytest.approx([x for s in one.segments for x in s.logprobs])
        assert row["versions"] == [
            span.version for s in one.segments for span in s.spans for _ in range(span.start, span.end)
        ]
        if not one.sampled:
            assert row["logprobs"] is None
            continue
        order = iter([i for part in sampling_order(one) for i in part])
        for position, sampled in enumerate(row["mask"]):
            if not sampled:
                assert isnan(row["logprobs"][position])
                assert not row["trained"][position]
                continue
            index = by_token[number, next(order)]
            for name in TRAINED:
                assert row[name][position] == pytest.approx(values.columns()[name][index])
            if values.reference_N is not None:
                assert row["reference_logprobs"][position] == pytest.approx(values.reference_N[index])
        assert (row["reference_logprobs"] is None) == (values.reference_N is None)


def test_numbers_of_a_completion_are_those_of_its_sampled_tokens() -> None:
    random = Random(3)
    one = group("g", [completion(random, segments=2), completion(random)])
    values = values_of(random, [each.sampled for each in one.completions])
    row, _ = make_table(6, trained_groups([one]), values, weights=WEIGHTS, time=1.5).to_pylist()
    used = [i for i, sampled in enumerate(row["mask"]) if sampled]
    ratios = [exp(row["logprobs"][i] - row["rollout_logprobs"][i]) for i in used]
    trained = [row["advantages"][i] for i in used if row["trained"][i]]
    assert row["largest_ratio"] == pytest.approx(max(ratios), rel=1e-5)
    assert row["smallest_ratio"] == pytest.approx(min(ratios), rel=1e-5)
    assert row["advantage"] == pytest.approx(sum(trained) / len(trained), rel=1e-5)
    assert row["over_age"] == len(used) - len(trained)
    assert row["clipped_low"] == sum(row["sides"][i] == -1 for i in used)
    assert row["clipped_high"] == sum(row["sides"][i] == 1 for i in used)
    assert (row["sampled"], row["tokens"]) == (len(used), len(row["mask"]))
    assert (row["step"], row["staleness"]) == (6, 5 - min(row["versions"]))
    assert row["reward"] == pytest.approx(2 * one.completions[0].rewards[0].value)
    assert row["segment_starts"] == [0, len(one.completions[0].token_ids)]
    assert row["segment_prompts"] == [None, [1, 2, 1]]


def test_a_withheld_and_a_filtered_completion_have_a_reason_and_no_values_of_training() -> None:
    random = Random(4)
    batch = group("g", [completion(random, failed=True), completion(random)])
    other = group("h", [completion(random)])
    values = values_of(random, [0, batch.completions[1].sampled])
    groups = [*trained_groups([batch]), StoredGroup(group=other, state="filtered", reason="no_variance")]
    withheld, trained, filtered = make_table(1, groups, values, weights=WEIGHTS, time=0.0).to_pylist()
    assert (withheld["state"], withheld["reason"]) == ("withheld", "exact_match: no verifier")
    assert (filtered["state"], filtered["reason"]) == ("filtered", "no_variance")
    assert withheld["reward"] is None
    assert withheld["rewards"][0]["value"] is None
    for row in (withheld, filtered):
        assert [row[name] for name in (*TRAINED, "clipped_low", "largest_ratio", "advantage")] == [None] * 9
    assert trained["state"] == "trained"
    assert trained["logprobs"] is not None


def test_a_prompt_of_messages_is_stored_in_json() -> None:
    one = group("g", [completion(Random(1))], text="", messages=(ChatMessage(role="user", content="hi"),))
    (row,) = make_table(1, trained_groups([one]), None, weights={}, time=0.0).to_pylist()
    assert row["prompt"] == '[{"role": "user", "content": "hi"}]'


def test_a_batch_without_completions_has_no_rows() -> None:
    assert make_table(1, [], None, weights={}, time=0.0).num_rows == 0
