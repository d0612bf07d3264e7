"""Text to ids and back: nothing is lost, and there is one way of cutting."""

from __future__ import annotations

import pytest

from latreft.models.tokenisation import TextTokenizer
from latreft.models.tokenizer_training import train_tokenizer

TEXTS = ["the film was a joy to watch", "a dull plot, and the acting was worse", "win a prize now!"] * 3


@pytest.fixture(scope="module", params=[False, True], ids=["no bos", "bos"])
def tokenizer(request) -> TextTokenizer:
    return TextTokenizer(train_tokenizer(TEXTS, 320, beginning=request.param))


def test_every_byte_has_a_token_and_comes_back(tokenizer):
    characters = "".join(chr(code) for code in range(0x100))
    wide = "“naïve” ½ 漢字 🙂 \u2028 \ufeff \x00 \t\n\r  double  spaces "
    for text in (characters, wide, "", " ", "\x00", *(chr(code) for code in range(0x80))):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    every_byte = {byte for code in (*range(0x80), *range(0x80, 0x2000, 7), 0x10FFFF) for byte in chr(code).encode()}
    assert len(every_byte) > 180
    for code in range(0x80, 0x3000, 11):
        assert tokenizer.decode(tokenizer.encode(chr(code))) == chr(code)


def test_the_vocabulary_is_no_larger_than_asked_and_holds_the_special_tokens(tokenizer):
    assert 256 + 3 <= len(tokenizer) <= 320
    hf = tokenizer.tokenizer
    assert (hf.pad_token_id, hf.bos_token_id, hf.eos_token_id) == (0, 1, 2)
    assert {0, 1, 2} <= tokenizer.special


def test_cutting_keeps_the_beginning_and_counts_special_tokens(tokenizer):
    text = TEXTS[0]
    whole = tokenizer.encode(text)
    for length in (1, 2, 5, len(whole), len(whole) + 10):
        assert tokenizer.encode(text, length) == whole[:length]
        (example,) = tokenizer.examples(["a"], [text], [1], length)
        assert example.tokens == whole[:length]
        assert (example.id, example.label) == ("a", 1)


def test_the_lead_is_the_special_tokens_in_front(tokenizer):
    hf = tokenizer.tokenizer
    tokens = tokenizer.encode("win")
    assert tokenizer.lead(tokens) == (1 if tokens[0] == hf.bos_token_id else 0)
    assert tokenizer.lead((1, 2, 1)) == 3
    assert tokenizer.lead(()) == 0


def test_examples_keep_order_and_refuse_lists_of_unlike_length(tokenizer):
    made = tokenizer.examples([3, "b"], ["win", "a plot"], [0, 1], 50)
    assert [(e.id, e.label) for e in made] == [("3", 0), ("b", 1)]
    assert [e.tokens for e in made] == [tokenizer.encode("win"), tokenizer.encode("a plot")]
    with pytest.raises(ValueError):
        tokenizer.examples(["a"], ["win", "a plot"], [0, 1], 50)


def test_training_is_deterministic():
    one, other = (train_tokenizer(TEXTS, 300, beginning=True) for _ in range(2))
    assert one.get_vocab() == other.get_vocab()
