"""Tiny models, a tiny byte-level tokenizer and a small attack split, shared by the tests of attacks."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from latreft.attacks import gcg, random_token
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.interventions.edits import ReftEdit
from latreft.interventions.reft import LoReFT
from latreft.models.classifier import Classifier
from latreft.models.families import family
from latreft.models.tokenisation import TextTokenizer

TEXTS = [
    "the film was a joy to watch and the cast was great!!!",
    "a dull plot, and the acting was worse than the plot",
    "the meeting is at noon, please send the report to the team",
    "win a prize now! send the code to the number below",
]
EXTRA = 3  # rows of the embedding beyond the tokenizer, as padded vocabularies have


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def _tokenizer(bos: bool) -> TextTokenizer:
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        min_frequency=1,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 4, trainer)
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return TextTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>"))


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    """Adds no special tokens."""
    return _tokenizer(bos=False)


@pytest.fixture(scope="session")
def bos_tokenizer() -> TextTokenizer:
    """Puts a BOS in front of every text."""
    return _tokenizer(bos=True)


@pytest.fixture(scope="session")
def build():
    """``build(name, reft)``: a tiny random classifier in float64, with or without a ReFT edit of the last 5 positions."""

    def model(name: str = "llama", reft: bool = False, vocabulary: int = 300 + EXTRA) -> Defended:
        torch.manual_seed(0)
        extra = {} if name == "gpt_neox" else {"num_key_value_heads": 2}
        kind = family(name)
        config = kind.config(
            vocab_size=vocabulary,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=24,
            max_position_embeddings=128,
            initializer_range=0.3,
            **extra,
        )
        classifier = Classifier(kind.build(config), kind).double().eval()
        classifier.initialise_head(0)
        with torch.no_grad():
            classifier.head.weight.mul_(30)
        edit = ReftEdit(1, LoReFT(16, 3, start="random", seed=1, dtype=torch.float64)) if reft else None
        return Defended(classifier, edit, 5)

    return model


@pytest.fixture(scope="session")
def engine() -> ReferenceEngine:
    return ReferenceEngine()


@pytest.fixture
def rows() -> pd.DataFrame:
    texts = [*TEXTS, "ok"]
    return pd.DataFrame({"id": [f"x{i}" for i in range(5)], "text": texts, "label": [0, 1, 0, 1, 1]})


@pytest.fixture
def few_rounds() -> gcg.Settings:
    return gcg.Settings(tokens=3, rounds=3, top_k=8, candidates=12, batch_size=5)


@pytest.fixture
def few_draws() -> random_token.Settings:
    return random_token.Settings(tokens=3, draws=20, batch_size=7)
