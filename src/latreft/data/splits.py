"""Drawing the splits: plain random sampling with a seed, as in Section A.1 (no class balancing).

A row's place in the draw is the SHA-256 of seed, purpose and id. It depends on neither the order of the input rows nor
on any library's random numbers, and a row added to the data moves no other row relative to the rest.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from latreft.data.settings import DatasetSettings
from latreft.settings import SettingsError

if TYPE_CHECKING:
    import pandas as pd

BOTH_CLASSES = ("ft_train", "validation")


def shuffled(frame: pd.DataFrame, seed: int, purpose: str) -> pd.DataFrame:
    """Rows in the order drawn by ``seed``; another ``purpose`` gives an independent order. Ids must be distinct."""
    place = [hashlib.sha256(f"{seed}:{purpose}:{row}".encode()).hexdigest() for row in frame["id"]]
    return frame.assign(place=place).sort_values("place").drop(columns="place").reset_index(drop=True)


def carve_validation(frame: pd.DataFrame, share: float, seed: int) -> pd.DataFrame:
    """Mark a random ``share`` (rounded to rows) of training rows as validation, for sources that have none."""
    drawn = shuffled(frame, seed, "carve")
    rows = round(share * len(drawn))
    return drawn.assign(split=["validation"] * rows + ["train"] * (len(drawn) - rows))


def make_splits(name: str, frame: pd.DataFrame, settings: DatasetSettings) -> dict[str, pd.DataFrame]:
    """Disjoint ``attack``, ``ft_train`` and (if wanted) ``tuning`` from training rows, and ``validation``.

    From one shuffled order of the training rows ``attack`` takes the front, ``ft_train`` follows and ``tuning`` takes
    the end: a tuning split added later, or a larger ``ft_train``, leaves the attacked texts as they were. Validation is
    all its rows, or the first ``settings.validation`` of its own shuffled order.

    Raises :class:`SettingsError` naming data set, counts and remedy if there are too few rows or a class is missing.
    """
    train = shuffled(frame[frame["split"] == "train"], settings.seed, "train")
    validation = shuffled(frame[frame["split"] == "validation"], settings.seed, "validation")
    _require_classes(name, "filtered training rows", train, settings)
    _require_classes(name, "filtered validation rows", validation, settings)
    _require_rows(name, len(train), len(validation), settings)
    after_attack = settings.attack + settings.ft_train
    splits = {
        "ft_train": train[settings.attack : after_attack],
        "attack": train[: settings.attack],
        "validation": validation[: settings.validation],
    }
    if settings.tuning:
        splits["tuning"] = train[len(train) - settings.tuning :]
    for split in BOTH_CLASSES:
        _require_classes(name, f"split '{split}'", splits[split], settings)
    return {split: rows.reset_index(drop=True) for split, rows in splits.items()}


def class_counts(frame: pd.DataFrame, label_names: tuple[str, str]) -> dict[str, int]:
    """Rows of each class, by its name."""
    return {label_names[label]: int((frame["label"] == label).sum()) for label in (0, 1)}


def _require_classes(name: str, what: str, frame: pd.DataFrame, settings: DatasetSettings) -> None:
    counts = class_counts(frame, settings.label_names)
    missing = [label for label, rows in counts.items() if rows == 0]
    if missing:
        length = settings.length
        raise SettingsError(
            f"data set '{name}': {what} have no {' and no '.join(repr(label) for label in missing)} "
            f"(rows by class: {counts}); check the source's labels, widen length ({length.min_tokens} to "
            f"{length.max_tokens} tokens of '{length.tokenizer}') or ask for more rows"
        )


def _require_rows(name: str, train: int, validation: int, settings: DatasetSettings) -> None:
    wanted = settings.ft_train + settings.attack + settings.tuning
    if wanted > train:
        raise SettingsError(
            f"data set '{name}': ft_train {settings.ft_train} + attack {settings.attack} + tuning {settings.tuning} = "
            f"{wanted} rows wanted, {train} training rows are left after cleaning and filtering; lower ft_train to at "
            f"most {max(0, train - settings.attack - settings.tuning)}, or widen length"
        )
    if settings.validation is not None and settings.validation > validation:
        raise SettingsError(
            f"data set '{name}': validation {settings.validation} rows wanted, {validation} are left after cleaning "
            "and filtering; lower validation, or leave it out to keep them all"
        )
