"""What every engine offers. Methods and attacks see this and nothing of how a pass is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier


@dataclass(frozen=True)
class Defended:
    """A classifier with what defends it: its own (trained) weights, and a ReFT edit of the last ``window`` positions."""

    classifier: Classifier
    reft: ReftEdit | None = None
    window: int = 1

    @property
    def edits(self) -> Edits:
        return Edits(reft=self.reft)


class Prepared(Protocol):
    """One batch made ready for many passes through one model. L = min(window, T).

    It holds for the weights that the model had when it was prepared: prepare anew after each optimiser step.
    """

    mask: Tensor
    """bool [B, L]: the real positions of the window."""

    def hidden(self, layer: int) -> Tensor:
        """The clean, unedited hidden state of the window [B, L, D], without gradient."""

    def logits(self, edits: Edits) -> Tensor:
        """Logits [B, 2] of the edited window, differentiable in the edits."""

    def logits_each(self, *edits: Edits) -> Tensor:
        """Logits [len(edits), B, 2] of the window edited in each of the ways given, differentiable in the edits."""

    def training_logits(self, *edits: Edits) -> Tensor:
        """Logits [len(edits), B, 2] by full passes, differentiable in the edits and in the model's trainable weights."""

    def ascend(
        self,
        defended: Edits,
        layer: int,
        base: Tensor | None,
        start: Tensor,
        labels: Tensor,
        ball: Ball,
        *,
        steps: int,
        step_size: float,
    ) -> Tensor:
        """The perturbation [B, L, D] of ``layer`` (added to ``base``, see :class:`Perturbation`) that PGD finds."""


class TokenSearch(Protocol):
    """One example under a discrete attack: N tokens inserted into its content at one place."""

    def gradient(self, attack: Tensor) -> Tensor:
        """d loss / d one-hot of the attacked tokens: [N, V] float32, for attack tokens [N]."""

    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy [C] and logits [C, 2], float32, of candidate token rows [C, N]."""


class SearchGroup(Protocol):
    """Several examples under discrete attacks of equally many tokens. Members are named by their place, from 0."""

    def gradients(self, attacks: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """:meth:`TokenSearch.gradient` of each member that asks."""

    def losses(self, candidates: Mapping[int, Tensor]) -> dict[int, tuple[Tensor, Tensor]]:
        """:meth:`TokenSearch.losses` of each member that asks."""


class Engine(Protocol):
    """Runs passes."""

    name: str

    def prepare(self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None) -> Prepared:
        """Make a batch ready for passes that edit its last ``window`` positions only.

        With ``prefix_of``, ``model`` is a surrogate pruned from it that stands in for it in the window only: earlier
        positions are those of ``prefix_of``.
        """

    def search(self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int) -> TokenSearch:
        """Make one example ready for a discrete attack that inserts tokens before ``content[at]``.

        ``at = len(content)`` is a suffix. At most ``batch_size`` candidates run together.
        """

    def groups(self, defended: Defended, places: Sequence[tuple[int, int]], size: int) -> list[list[int]]:
        """Which examples to attack together, at most ``size`` each: every index of ``places`` once.

        ``places`` are each example's number of content tokens and the place of the attack in it.
        """

    def group(self, searches: Sequence[TokenSearch], tokens: int, size: int) -> SearchGroup:
        """Searches of one of the ``groups`` of several, each for attacks of ``tokens`` tokens, as one."""


def predict(engine: Engine, defended: Defended, batch: Batch) -> Tensor:
    """Logits [B, 2] of a defended model, without gradient."""
    with torch.no_grad():
        return engine.prepare(defended.classifier, batch, defended.window).training_logits(defended.edits)[0]
