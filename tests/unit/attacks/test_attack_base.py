"""The place of the attack, allowed tokens, generators, comparison of losses, outcomes and their rates."""

from __future__ import annotations

import pandas as pd
import pytest
import torch

from latreft.attacks.base import (
    Outcome,
    allowed_tokens,
    attack_metrics,
    attacked,
    content_of,
    example_generator,
    highest,
    place,
    predictions,
    recompute,
    round_trips,
    write_outcomes,
)
from latreft.models.tokenisation import TextTokenizer
from latreft.settings import SettingsError


def outcome(id_="a", label=0, before=0, after=1, **changes) -> Outcome:
    success = before == label != after
    values = {
        "id": id_, "label": label, "prediction_before": before, "prediction_after": after, "loss_before": 0.1,
        "loss_after": 0.9, "loss_in_search": 0.9, "attack_tokens": (5, 6), "attack_text": "ab", "round_trips": True,
        "success": success, "success_after_round_trip": success, "iterations": 2, "forwards": 9,
        "backwards": 2, "without_survivor": 0,
    }  # fmt: skip
    return Outcome(**values | changes)


def test_content_is_cut_before_the_attack_so_the_whole_suffix_stays(tokenizer):
    content = content_of(tokenizer, "the film was a joy " * 20, max_length=16, tokens=4)
    suffix = (40, 41, 42, 43)
    sequence = attacked(content, place(tokenizer, content, "suffix"), suffix)
    assert len(content) == 12 and len(sequence) == 16
    assert sequence[-4:] == suffix


def test_no_room_for_content_is_an_error_that_names_both_lengths(tokenizer):
    with pytest.raises(SettingsError, match="max_length 4 leaves no room.* 4 attacked"):
        content_of(tokenizer, "the film", max_length=4, tokens=4)


def test_prefix_stands_behind_leading_special_tokens(bos_tokenizer):
    content = content_of(bos_tokenizer, "the film", 30, 2)
    at = place(bos_tokenizer, content, "prefix")
    sequence = attacked(content, at, (40, 41))
    assert at == 1
    assert sequence == (bos_tokenizer.tokenizer.bos_token_id, 40, 41, *content[1:])


def test_content_of_special_tokens_only_has_one_place_for_both(bos_tokenizer):
    content = content_of(bos_tokenizer, "", 30, 2)
    assert len(content) == 1
    assert place(bos_tokenizer, content, "prefix") == place(bos_tokenizer, content, "suffix") == 1


def test_allowed_tokens_are_real_and_not_special(tokenizer):
    allowed = allowed_tokens(tokenizer, 303)
    assert allowed.shape == (303,)
    assert not allowed[[0, 1, 300, 301, 302]].any() and allowed[2:300].all()


def test_reserved_tokens_that_decoding_drops_are_not_allowed():
    class Added:
        def __init__(self, special):
            self.special = special

    class Inner:
        all_special_ids = (0,)
        added_tokens_decoder = {3: Added(True), 4: Added(False)}

        def __len__(self):
            return 6

    class Plain(Inner):
        all_special_ids, added_tokens_decoder = (), {}

    assert allowed_tokens(TextTokenizer(Inner()), 5).tolist() == [False, True, True, False, True]
    assert allowed_tokens(TextTokenizer(Plain()), 8).tolist() == [True] * 6 + [False] * 2


def test_generator_is_the_examples_own():
    def draw(*key):
        return torch.randint(10**9, (4,), generator=example_generator(*key)).tolist()

    assert draw(0, "gcg", "a") == draw(0, "gcg", "a")
    assert len({tuple(draw(*key)) for key in [(0, "gcg", "a"), (1, "gcg", "a"), (0, "rt", "a"), (0, "gcg", "b")]}) == 4


def test_ties_go_to_the_lowest_index_and_are_judged_in_float32():
    assert highest(torch.tensor([1.0, 2.0, 2.0])) == 1
    assert highest(torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)) == 0
    assert predictions(torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]])).tolist() == [0, 1, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_an_error(bad):
    with pytest.raises(FloatingPointError, match="loss is (nan|inf)"):
        highest(torch.tensor([1.0, bad]))


@pytest.mark.parametrize("lead", [False, True])
def test_round_trip_is_of_the_whole_attacked_sequence(tokenizer, bos_tokenizer, lead):
    tokenizer = bos_tokenizer if lead else tokenizer
    content = tokenizer.encode("the film was a")
    letters = [tokenizer.encode(letter)[-1] for letter in " the"]
    word = tokenizer.encode(" the")[lead:]
    assert len(word) == 1, "the test needs a vocabulary with this word"
    candidates = torch.tensor([letters, word * 4])
    assert round_trips(tokenizer, content, len(content), candidates).tolist() == [False, True]
    assert round_trips(tokenizer, content, len(content), candidates[:0]).tolist() == []


def test_rates_have_the_denominators_that_their_names_say():
    outcomes = [
        outcome("a", 0, 0, 1),
        outcome("b", 1, 1, 0, round_trips=False, success_after_round_trip=False),
        outcome("c", 1, 1, 0, round_trips=False),
        outcome("d", 1, 1, 1),
        outcome("e", 0, 1, 1),
    ]
    metrics = attack_metrics(outcomes)
    fractions = {name: (metric.value, metric.n) for name, metric in metrics.items() if metric.unit == "rate"}
    assert fractions == {
        "accuracy_before": (4 / 5, 5),
        "accuracy_after": (1 / 5, 5),
        "asr": (3 / 5, 5),
        "asr_of_correct": (3 / 4, 4),
        "asr_round_trip": (2 / 5, 5),
        "round_trip": (3 / 5, 5),
        "flips_0_to_1": (1 / 3, 3),
        "flips_1_to_0": (2 / 3, 3),
    }
    assert metrics["loss_after"].value == pytest.approx(0.9) and metrics["loss_after"].unit == "nats"


def test_a_metric_over_no_examples_is_left_out():
    metrics = attack_metrics([outcome(label=0, before=1, after=1)])
    assert "asr" in metrics
    assert not {"asr_of_correct", "flips_0_to_1", "flips_1_to_0"} & set(metrics)
    assert attack_metrics([]) == {}


def test_metrics_recomputed_from_the_saved_outcomes_are_equal_and_bytes_are_stable(tmp_path):
    outcomes = [outcome("a"), outcome("b", 1, 1, 1, attack_tokens=(7, 8), attack_text="\ufffd\x00é"), outcome("c", 1)]
    for name in ("one", "two"):
        write_outcomes(outcomes, tmp_path / f"{name}.parquet")
    frame = pd.read_parquet(tmp_path / "one.parquet")
    assert recompute(frame) == attack_metrics(outcomes)
    assert list(frame["attack_tokens"].iloc[1]) == [7, 8] and frame["attack_text"].iloc[1] == "\ufffd\x00é"
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_a_success_that_is_no_flip_is_noticed():
    with pytest.raises(ValueError, match="example q counts as a success"):
        attack_metrics([outcome("q", 0, 0, 0, success=True)])
