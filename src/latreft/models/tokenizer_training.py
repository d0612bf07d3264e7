"""A byte-level BPE tokenizer trained on a few texts, for models with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SPECIAL = ("<pad>", "<s>", "</s>")


def train_tokenizer(texts: Sequence[str], vocabulary: int, *, beginning: bool) -> Any:
    """A transformers tokenizer with at most ``vocabulary`` entries; ``beginning`` puts ``<s>`` before each text.

    Every byte has a token, so any text can be encoded and decoded without loss.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer=trainer)
    if beginning:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", padding_side="left"
    )
