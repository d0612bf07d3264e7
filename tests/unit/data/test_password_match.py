"""PasswordMatch: balanced, distinct, deterministic, and the label is what the text says."""

from __future__ import annotations

import hashlib

import pytest

from latreft.data.password_match import DENIED, GRANTED, MOST_TEXTS, generate
from latreft.data.password_words import WORDS

FIRST_150_SHA256 = "9eef4572f2f38619ba67126c1e16fc503be4ad13b83be5d2154f3c348104359c"


def passwords(text: str) -> tuple[str, str]:
    system, user = text.split("\n")
    return system.removeprefix("System password: "), user.removeprefix("User password: ")


def test_words_are_fixed_distinct_and_plain() -> None:
    assert len(WORDS) >= 2_000 and list(WORDS) == sorted(set(WORDS))
    assert all(word.isascii() and word.isalpha() and word.islower() and 3 <= len(word) <= 8 for word in WORDS)


def test_labels_say_whether_the_passwords_are_equal() -> None:
    for text, label in generate(2_000, 500)[["text", "label"]].itertuples(index=False):
        system, user = passwords(text)
        assert (GRANTED if system == user else DENIED) == label
        assert all(len(set(password.split())) == 2 for password in (system, user))


def test_full_size_is_balanced_and_without_a_copy_anywhere() -> None:
    frame = generate(25_000, 25_000)
    assert frame["text"].is_unique
    assert frame.groupby(["split", "label"]).size().tolist() == [12_500] * 4


def test_equal_arguments_give_equal_texts_and_another_seed_others() -> None:
    one = generate(200, 50, seed=0)
    assert one.equals(generate(200, 50, seed=0))
    assert not set(one["text"]) & set(generate(200, 50, seed=1)["text"])


def test_texts_are_the_same_on_every_machine() -> None:
    text = "\n".join(generate(100, 50)["text"])
    assert hashlib.sha256(text.encode()).hexdigest() == FIRST_150_SHA256


def test_denied_passwords_include_near_misses() -> None:
    denied = generate(3_000, 2)
    pairs = [passwords(text) for text in denied.loc[denied["label"] == DENIED, "text"]]
    shared = [sum(a == b for a, b in zip(system.split(), user.split(), strict=True)) for system, user in pairs]
    assert 0.55 < sum(number == 1 for number in shared) / len(shared) < 0.78
    assert 2 not in shared


def test_more_texts_than_the_words_give_is_an_error() -> None:
    with pytest.raises(ValueError, match="the word list gives at most"):
        generate(MOST_TEXTS, 1)
