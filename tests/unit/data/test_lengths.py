"""The tokenizers of the length filter: each kind is what it says, and none stands in for another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latreft.data.lengths import LengthCounter, length_counter


@pytest.fixture
def bpe(tmp_path: Path) -> Path:
    """A byte-level BPE of a few hundred tokens in GPT-2's two files."""
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(["the film was good", "the film was bad"] * 50, vocab_size=300, show_progress=False)
    (tmp_path / "bpe").mkdir()
    vocabulary, merges = tokenizer.save_model(str(tmp_path / "bpe"))
    Path(vocabulary).rename(tmp_path / "bpe" / "encoder.json")
    Path(merges).rename(tmp_path / "bpe" / "vocab.bpe")
    tokenizer.save(str(tmp_path / "bpe" / "tokenizer.json"))
    return tmp_path / "bpe"


def test_whitespace_counts_words() -> None:
    counter = length_counter("whitespace", "/")
    assert counter.count(["one two\n three", "", "  x "]) == [3, 0, 1]
    assert counter.describe() == {"tokenizer": "whitespace", "vocabulary": None, "vocabulary_sha256": None}


def test_bpe_and_file_count_alike_and_say_what_they_are(bpe: Path) -> None:
    by_bpe, by_file = length_counter("bpe:bpe", bpe.parent), length_counter(f"file:{bpe}/tokenizer.json", "/")
    texts = ["the film was good", "the filmx", "", "naïve 🙂"]
    assert by_bpe.count(texts) == by_file.count(texts)
    assert by_bpe.count(texts)[0] == 4 and by_bpe.count(texts)[2] == 0
    size = len(json.loads((bpe / "encoder.json").read_text()))
    assert by_bpe.describe()["vocabulary"] == size == by_file.describe()["vocabulary"]
    assert by_bpe.describe()["vocabulary_sha256"] == by_file.describe()["vocabulary_sha256"]
    assert by_bpe.name == "bpe:bpe" and by_file.name == "file:tokenizer.json"  # no absolute path


def test_a_stored_truncation_does_not_hide_a_long_text(bpe: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(bpe / "cut.json"))
    assert length_counter(f"file:{bpe}/cut.json", "/").count([" film" * 10_000, "the"]) == [10_000, 1]


def test_special_tokens_are_not_counted(bpe: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    tokenizer = Tokenizer.from_file(str(bpe / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    tokenizer.save(str(bpe / "special.json"))
    assert length_counter(f"file:{bpe}/special.json", "/").count(["the"]) == [1]


def test_batches_do_not_change_counts(bpe: Path) -> None:
    counter = length_counter(f"bpe:{bpe}", "/")
    texts = ["the film " * (index % 5) + "x" for index in range(2_500)]
    assert counter.count(texts) == [counter.count([text])[0] for text in texts]


@pytest.mark.parametrize("spec", ["file:gone.json", "bpe:gone"])
def test_a_missing_file_is_named(tmp_path: Path, spec: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"length\.tokenizer: .*gone.* does not exist"):
        length_counter(spec, tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "encoder.json").write_text("{")
    (tmp_path / "vocab.bpe").write_text("")
    with pytest.raises(ValueError, match=r"bad\.json is not a tokenizer\.json"):
        length_counter("file:bad.json", tmp_path)
    with pytest.raises(ValueError, match=r"encoder\.json and .*vocab\.bpe cannot be read"):
        length_counter(f"bpe:{tmp_path}", "/")


def test_gpt2_that_cannot_be_reached_is_one_error_with_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    class Unreachable:
        @staticmethod
        def from_pretrained(name: str) -> None:
            raise Exception(f"no {name} here")

    monkeypatch.setattr(tokenizers, "Tokenizer", Unreachable)
    with pytest.raises(
        OSError, match=r"neither in the local hub cache nor reachable.*bpe:FOLDER.*file:PATH.*whitespace"
    ):
        length_counter("gpt2", "/")


def test_another_tokenizer_under_the_name_gpt2_is_refused(bpe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tokenizers

    real = tokenizers.Tokenizer

    class Cached:
        @staticmethod
        def from_pretrained(name: str) -> tokenizers.Tokenizer:
            return real.from_file(str(bpe / "tokenizer.json"))

    monkeypatch.setattr(tokenizers, "Tokenizer", Cached)
    with pytest.raises(ValueError, match=r"GPT-2 has 50257"):
        length_counter("gpt2", "/")


def test_unknown_specs_are_errors() -> None:
    with pytest.raises(ValueError, match="'words' is unknown"):
        length_counter("words", "/")


def test_lengths_of_nothing() -> None:
    assert LengthCounter("whitespace").count([]) == []
