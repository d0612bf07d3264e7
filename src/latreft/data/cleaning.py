"""Which rows may be used: whole texts, one label a text, one copy a text, a length within bounds.

Rows are dropped in this order, each for one reason:

- ``missing``: no text. ``empty``: nothing but white space. ``nul``: a NUL byte, the mark of a damaged or binary text,
  which some tokenizers cut at and others keep.
- ``conflicting_labels``: the same text stands somewhere with the other label; which is right cannot be known, so all of
  its rows go, in both splits.
- ``copy``: an exact copy of another row of the same split; one stays.
- ``too_short``, ``too_long``: outside the length filter.
- ``in_validation``: a training text that validation has too. It stays in validation only: the evaluated set is then the
  same whatever is trained on, and no evaluated text was seen in training.

Texts are compared as they are. Near copies (equal letters) are counted by :func:`near_copies`, not dropped: the paper
drops none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

DROP_REASONS = (
    "missing", "empty", "nul", "conflicting_labels", "copy", "too_short", "too_long", "in_validation",
)  # fmt: skip
BEFORE_LENGTH = DROP_REASONS[:5]
NOT_LETTERS = re.compile(r"[\W\d_]+")


def clean(
    frame: pd.DataFrame, count_tokens: Callable[[Sequence[str]], list[int]], min_tokens: int, max_tokens: int
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Drop what may not be used from ``frame`` (columns id, split, text, label).

    Returns the kept rows with a column ``tokens``, and for each split of origin the counts ``raw``, ``distinct``
    (usable texts, one copy each), ``filtered`` (kept) and ``dropped`` (rows by reason); ``raw`` is ``filtered`` and all
    that was dropped.
    """
    frame = frame.reset_index(drop=True)
    reason = _usable(frame)
    kept = frame[reason == ""]
    kept = kept.assign(tokens=count_tokens(kept["text"].tolist()))
    reason[kept.index[kept["tokens"] < min_tokens]] = "too_short"
    reason[kept.index[kept["tokens"] > max_tokens]] = "too_long"
    kept = kept[reason[kept.index] == ""]
    validation = set(kept.loc[kept["split"] == "validation", "text"])
    reason[kept.index[(kept["split"] == "train") & kept["text"].isin(validation)]] = "in_validation"
    counts = {split: _counts(reason[frame["split"] == split]) for split in frame["split"].unique()}
    return kept[reason[kept.index] == ""].reset_index(drop=True), counts


def _usable(frame: pd.DataFrame) -> pd.Series:
    """Reason to drop each row, before its length is known; '' where there is none."""
    import pandas as pd

    reason = pd.Series([_damage(text) for text in frame["text"]], index=frame.index, dtype=object)
    kept = frame[reason == ""]
    labels = kept.groupby("text")["label"].transform("nunique")
    reason[kept.index[labels > 1]] = "conflicting_labels"
    kept = frame[reason == ""]
    reason[kept.index[kept.duplicated(["split", "text"])]] = "copy"
    return reason


def _damage(text: Any) -> str:
    if not isinstance(text, str):
        return "missing"
    if not text.strip():
        return "empty"
    return "nul" if "\0" in text else ""


def _counts(reason: pd.Series) -> dict[str, Any]:
    found = reason.value_counts()
    dropped = {name: int(found.get(name, 0)) for name in DROP_REASONS}
    raw = len(reason)
    return {
        "raw": raw,
        "distinct": raw - sum(dropped[name] for name in BEFORE_LENGTH),
        "filtered": raw - sum(dropped.values()),
        "dropped": dropped,
    }


def near_copies(texts: Sequence[str], others: Sequence[str]) -> int:
    """How many of ``texts`` have the same letters, in order, as one of ``others`` (case, digits, spacing apart)."""
    letters = {_letters(text) for text in others}
    return sum(_letters(text) in letters for text in texts)


def _letters(text: str) -> str:
    return NOT_LETTERS.sub("", text.casefold())
