"""Text to the token ids that the classifier sees: one place for training, evaluation and attack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from latreft.models.batch import Example


class TextTokenizer:
    """A transformers tokenizer with one way of cutting: the beginning is kept, ``max_length`` tokens at most.

    The tokenizer's own special tokens (a leading BOS, where a model has one) are part of the sequence and counted.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        reserved = {id_ for id_, token in added.items() if token.special}
        self.special = frozenset(tokenizer.all_special_ids) | reserved

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str, max_length: int | None = None) -> tuple[int, ...]:
        """Token ids of ``text``, cut on the right."""
        return tuple(self.tokenizer(text)["input_ids"][:max_length])

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out, no clean-up of spaces."""
        return self.tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    def lead(self, tokens: Sequence[int]) -> int:
        """How many special tokens stand in front: a prefix attack goes behind them."""
        count = 0
        while count < len(tokens) and tokens[count] in self.special:
            count += 1
        return count

    def examples(
        self, ids: Sequence[str], texts: Sequence[str], labels: Sequence[int], max_length: int
    ) -> list[Example]:
        """Tokenised examples, in the order given."""
        encoded = self.tokenizer(list(texts), truncation=False)["input_ids"]
        return [
            Example(str(id_), tuple(tokens[:max_length]), int(label))
            for id_, tokens, label in zip(ids, encoded, labels, strict=True)
        ]
