"""PasswordMatch, generated: is the user's password the system's? (label 0 DENIED, label 1 GRANTED).

A password is two different common words. Some 2,600 one-word passwords would be too few for tens of thousands of
distinct matching texts, and two words make near misses: a denied user's password differs in the first word, in the
second or in both, equally often, so that no single word decides.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from latreft.data.password_words import WORDS

if TYPE_CHECKING:
    import pandas as pd

DENIED, GRANTED = 0, 1
LAYOUT = "System password: {}\nUser password: {}"
MOST_TEXTS = len(WORDS) * (len(WORDS) - 1)  # half of them granted, so half of the passwords stay unused


def _below(rng: random.Random, bound: int) -> int:
    """Uniform integer in [0, bound). Only ``random()`` keeps its sequence across Python versions."""
    return int(rng.random() * bound)


def _password(rng: random.Random) -> tuple[str, str]:
    first = _below(rng, len(WORDS))
    second = _below(rng, len(WORDS) - 1)
    return WORDS[first], WORDS[second + (second >= first)]


def _wrong_password(rng: random.Random, right: tuple[str, str]) -> tuple[str, str]:
    """Another password that shares the second word, the first, or neither with ``right``."""
    kept = _below(rng, 3)
    while True:
        first, second = _password(rng)
        wrong = [(first, right[1]), (right[0], second), (first, second)][kept]
        if wrong != right and wrong[0] != wrong[1]:
            return wrong


def generate(train: int, validation: int, seed: int = 0) -> pd.DataFrame:
    """``train`` + ``validation`` distinct texts; columns ``split``, ``text``, ``label``; labels alternate.

    Equal arguments give equal texts on every platform. Raises ``ValueError`` if the words do not allow so many.
    """
    import pandas as pd

    if train + validation > MOST_TEXTS:
        raise ValueError(
            f"PasswordMatch: {train} + {validation} texts wanted, the word list gives at most {MOST_TEXTS}"
        )
    rng = random.Random(seed)
    seen: set[str] = set()
    rows = []
    for split, size in (("train", train), ("validation", validation)):
        for index in range(size):
            label = index % 2
            text = _distinct_text(rng, label, seen)
            rows.append((split, text, label))
    return pd.DataFrame(rows, columns=["split", "text", "label"])


def _distinct_text(rng: random.Random, label: int, seen: set[str]) -> str:
    while True:
        system = _password(rng)
        user = system if label == GRANTED else _wrong_password(rng, system)
        text = LAYOUT.format(" ".join(system), " ".join(user))
        if text not in seen:
            seen.add(text)
            return text
