"""What discrete attacks share [A.5]: settings, the place of the attacked tokens, an example's generator, outcomes, rates.

An attack inserts N tokens into an example's content and searches for those that maximise the classifier's
cross-entropy of the true label. It sees the model through :class:`latreft.engine.interface.TokenSearch` only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from latreft.engine.interface import TokenSearch
from latreft.files import atomic, fingerprint
from latreft.models.tokenisation import TextTokenizer
from latreft.records import Metric, rate
from latreft.settings import Settings, SettingsError

if TYPE_CHECKING:
    import pandas as pd

Placement = Literal["suffix", "prefix"]
Survives = Callable[[Tensor], Tensor]
Encode = Callable[[str], tuple[int, ...]]


class AttackSettings(Settings):
    """What every attack can be told. A kind of attack adds its own and fixes ``kind`` to its module's name."""

    kind: str
    placement: Placement = "suffix"
    """``prefix`` stands in front of the content, behind its leading special tokens [B.3]."""
    tokens: int = Field(default=10, ge=1)
    """N, the attacked tokens."""
    batch_size: int = Field(default=128, ge=1)
    """Candidates that run together at most; the result does not depend on it."""
    in_flight: int = Field(default=8, ge=1)
    """Examples that are attacked together at most, where one does not fill the GPU; the result does not depend on it but
    for rounding."""
    stop_at_flip: bool = False
    require_round_trip: bool = False
    """Only candidates that survive decode → encode are run, and only they count as a success."""
    split: Literal["attack", "tuning"] = "attack"
    """Whose texts are attacked: those that are reported, or those that settings are chosen on."""
    examples: int | None = Field(default=None, ge=1)
    """How many rows of the split are attacked, from its beginning; all of them by default."""


@dataclass(frozen=True)
class Found:
    """What a search found: the N tokens kept and their loss (nats) as the search saw it.

    ``iterations`` were used; in ``without_survivor`` of them no candidate survived decode → encode. ``forwards`` and
    ``backwards`` count sequences: one per candidate, and one each per gradient.
    """

    tokens: tuple[int, ...]
    loss: float
    iterations: int
    forwards: int
    backwards: int = 0
    without_survivor: int = 0


class Attack(Protocol):
    """The function ``attack`` that each kind's module defines."""

    def __call__(
        self,
        search: TokenSearch,
        *,
        label: int,
        allowed: Tensor,
        encode: Encode,
        generator: torch.Generator,
        settings: AttackSettings,
        survives: Survives | None,
    ) -> Found:
        """Search for N tokens that maximise the loss of one example.

        ``label`` is the true class; ``allowed`` bool [V] the tokens that may be chosen; ``encode`` gives a text's ids
        without special tokens; ``generator`` (CPU) is the example's own; ``survives`` maps rows [C, N] to bool [C], or
        is None when nothing has to survive decode → encode.
        """


# --- the example under attack ---


def content_of(tokenizer: TextTokenizer, text: str, max_length: int, tokens: int) -> tuple[int, ...]:
    """The text's ids, cut to ``max_length - tokens`` BEFORE the attack is added, so that no attacked token is cut off."""
    if max_length <= tokens:
        raise SettingsError(
            f"max_length {max_length} leaves no room for content beside {tokens} attacked tokens; "
            f"raise max_length above {tokens} or lower the attack's tokens"
        )
    return tokenizer.encode(text, max_length - tokens)


def place(tokenizer: TextTokenizer, content: Sequence[int], placement: Placement) -> int:
    """Where the attacked tokens go: before ``content[place]``; a prefix stands behind leading special tokens."""
    return len(content) if placement == "suffix" else tokenizer.lead(content)


def attacked(content: Sequence[int], at: int, tokens: Sequence[int]) -> tuple[int, ...]:
    """The sequence that the classifier sees under attack."""
    return (*content[:at], *tokens, *content[at:])


def round_trips(tokenizer: TextTokenizer, content: Sequence[int], at: int, candidates: Tensor) -> Tensor:
    """Which candidate rows [C, N] survive as text: bool [C].

    A row survives if ``encode(decode(ids)) == ids`` for the whole attacked sequence. Decoding drops special tokens
    and encoding puts the tokenizer's own back, so a sequence with other special tokens in its content never survives.
    """
    if not len(candidates):
        return torch.zeros(0, dtype=torch.bool)
    sequences = [attacked(content, at, row) for row in candidates.tolist()]
    texts = [tokenizer.decode(sequence) for sequence in sequences]
    again = tokenizer.tokenizer(texts)["input_ids"]  # one call for all: the tokenizer spreads it over threads
    return torch.tensor([tuple(ids) == sequence for ids, sequence in zip(again, sequences, strict=True)])


def example_generator(seed: int, attack: str, example: str) -> torch.Generator:
    """The CPU generator of one example under one attack: its draws do not depend on neighbours, order or batch size."""
    return torch.Generator().manual_seed(int(fingerprint([seed, attack, example])[:15], 16))


def allowed_tokens(tokenizer: TextTokenizer, vocabulary: int) -> Tensor:
    """Which of ``vocabulary`` embedding rows an attack may choose: bool [V], True on real, non-special ids.

    Rows beyond the tokenizer (padding of the embedding) are not real; reserved tokens that decoding drops are special.
    """
    allowed = torch.arange(vocabulary) < len(tokenizer)
    allowed[[id_ for id_ in tokenizer.special if id_ < vocabulary]] = False
    if not allowed.any():
        raise ValueError(f"no token may be chosen: all {len(tokenizer)} ids of the tokenizer are special")
    return allowed


# --- comparing candidates ---


def highest(losses: Tensor) -> int:
    """Index of the highest loss, compared in float32; the lowest index among equals. NaN and infinity are errors."""
    losses = losses.float()
    if not losses.isfinite().all():
        raise FloatingPointError(f"a candidate's loss is {losses[~losses.isfinite()][0].item()}")
    return int((losses == losses.max()).nonzero()[0])


def predictions(logits: Tensor) -> Tensor:
    """Classes [C] of logits [C, 2]; equal logits are class 0 on every device."""
    return (logits[:, 1] > logits[:, 0]).long()


# --- outcomes ---


@dataclass(frozen=True)
class Outcome:
    """What an attack did to one example. Losses are cross-entropies of the true label in nats."""

    id: str
    label: int
    prediction_before: int
    """On the content, cut for the attack but without attacked tokens."""
    prediction_after: int
    """On the attacked sequence, by the pass that also measures accuracy."""
    loss_before: float
    loss_after: float
    loss_in_search: float
    """Of the same tokens, as the search saw it: equal to ``loss_after`` up to rounding."""
    attack_tokens: tuple[int, ...]
    attack_text: str
    round_trips: bool
    success: bool
    """Right before and wrong after; under ``require_round_trip`` also surviving decode → encode."""
    success_after_round_trip: bool
    """A success that is one for the attacked text too, tokenised anew and cut as any text is."""
    iterations: int
    forwards: int
    backwards: int
    without_survivor: int


def outcomes_frame(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row an example, in the order given; columns are the fields of :class:`Outcome`."""
    import pandas as pd

    rows = [asdict(outcome) | {"attack_tokens": list(outcome.attack_tokens)} for outcome in outcomes]
    return pd.DataFrame(rows, columns=[field.name for field in fields(Outcome)])


def write_outcomes(outcomes: Sequence[Outcome], path: str | Path) -> None:
    """Write the frame as parquet, atomically; equal outcomes give equal bytes."""
    with atomic(path) as temporary:
        outcomes_frame(outcomes).to_parquet(temporary, index=False)


def attack_metrics(outcomes: Sequence[Outcome]) -> dict[str, Metric]:
    """The metrics of a run; see :func:`recompute`."""
    return recompute(outcomes_frame(outcomes))


def recompute(frame: pd.DataFrame) -> dict[str, Metric]:
    """Metrics from the per-example outcomes (as saved). A metric over no examples is left out.

    ``asr`` divides by all evaluated examples (the paper's rate), ``asr_of_correct`` by those right before the attack;
    ``asr_round_trip`` is ``asr`` with the successes that the re-tokenised text keeps. ``flips_A_to_B`` are shares of
    the successes.
    """
    right = frame["prediction_before"] == frame["label"]
    success = frame["success"].astype(bool)
    impossible = frame.loc[success & ~(right & (frame["prediction_after"] != frame["label"])), "id"]
    if len(impossible):
        raise ValueError(f"example {impossible.iloc[0]} counts as a success, but its predictions are not a flip")
    n, successes = len(frame), int(success.sum())
    counts = {
        "accuracy_before": (right, n),
        "accuracy_after": (frame["prediction_after"] == frame["label"], n),
        "asr": (success, n),
        "asr_of_correct": (success, int(right.sum())),
        "asr_round_trip": (frame["success_after_round_trip"], n),
        "round_trip": (frame["round_trips"], n),
        "flips_0_to_1": (success & (frame["label"] == 0), successes),
        "flips_1_to_0": (success & (frame["label"] == 1), successes),
    }
    metrics = {name: rate(int(hits.sum()), total) for name, (hits, total) in counts.items() if total}
    means = {"loss_before": "nats", "loss_after": "nats", "without_survivor": "iterations"} if n else {}
    return metrics | {name: Metric(value=float(frame[name].mean()), unit=unit, n=n) for name, unit in means.items()}
