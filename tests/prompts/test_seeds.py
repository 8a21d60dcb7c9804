"""The data `seeds`: prompts that differ only in their seed."""

import pytest
from slipstream.config.data import SeedsData
from slipstream.prompts import make_source


def test_seeds_are_fields_of_prompts_and_no_held_out_seed_is_trained_on() -> None:
    source = make_source(SeedsData(prompt="play:", size=50), seed=3)
    assert source.held_out_size == 5
    held_out = {source.held_out(index).fields["seed"] for index in range(10)}
    assert held_out == set("01234")
    training = {source.training(index).fields["seed"] for index in range(2_000)}
    assert training == {str(number) for number in range(5, 50)}
    assert {source.training(index).text for index in range(9)} == {"play:"}


def test_the_order_depends_on_the_seed_of_the_run_alone() -> None:
    one, same, other = (make_source(SeedsData(prompt="p"), seed=seed) for seed in (1, 1, 2))
    first = [one.training(index) for index in range(50)]
    assert first == [same.training(index) for index in range(50)]
    assert first != [other.training(index) for index in range(50)]
    assert len({prompt.prompt_id for prompt in first}) == len({p.fields["seed"] for p in first})


@pytest.mark.parametrize(("size", "held_out"), [(2, 1), (19, 1), (20, 2), (100_000, 2048)])
def test_a_tenth_is_held_out(size: int, held_out: int) -> None:
    assert make_source(SeedsData(prompt="p", size=size), seed=0).held_out_size == held_out


def test_seeds_have_no_demonstrations() -> None:
    with pytest.raises(ValueError, match="has no demonstrations; imitate rows of a file"):
        make_source(SeedsData(prompt="p"), seed=0).demonstration(0)
