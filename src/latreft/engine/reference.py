"""The reference engine: every pass runs over the full sequence. Slow, short, and the definition of what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.engine.interface import Defended, SearchGroup, TokenSearch
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier, Edit


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy of each example [B]."""
    return F.cross_entropy(logits, labels, reduction="none")


class FullPrepared:
    """A batch whose passes all run over the T tokens."""

    def __init__(self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.model, self.batch = model, batch
        self.window = min(window, batch.length)
        self.mask = batch.mask[:, -self.window :]
        self.neurons = None if prefix_of is None else WindowPruned(prefix_of, model, self.window)
        if prefix_of is not None:
            self.model = prefix_of

    def _run(self, edits: dict[int, Edit]) -> Tensor:
        with self.neurons or nullcontext(), self.model.edited(edits):
            return self.model(self.batch)

    def hidden(self, layer: int) -> Tensor:
        caught: list[Tensor] = []

        def catch(state: Tensor) -> Tensor:
            caught.append(state[:, -self.window :])
            return state

        with torch.no_grad():
            self._run({layer: catch})
        return caught[0]

    def logits(self, edits: Edits) -> Tensor:
        def edit_of(layer: int) -> Edit:
            def edit(state: Tensor) -> Tensor:
                edited = edits.apply(layer, state[:, -self.window :], self.mask)
                return torch.cat([state[:, : -self.window], edited], dim=1)

            return edit

        return self._run({layer: edit_of(layer) for layer in edits.layers()})

    def logits_each(self, *edits: Edits) -> Tensor:
        return torch.stack([self.logits(each) for each in edits])

    def training_logits(self, *edits: Edits) -> Tensor:
        return self.logits_each(*edits)

    def ascend(
        self,
        defended: Edits,
        layer: int,
        base: Tensor | None,
        start: Tensor,
        labels: Tensor,
        ball: pgd.Ball,
        *,
        steps: int,
        step_size: float,
    ) -> Tensor:
        def loss_of(delta: Tensor) -> Tensor:
            return losses_of(self.logits(defended.perturbed(layer, delta, base)), labels)

        return pgd.ascend(loss_of, start, self.mask, ball, steps=steps, step_size=step_size)


class WindowPruned:
    """Within the context, the neurons that ``surrogate`` lacks are silent in ``model`` at the last ``window`` positions."""

    def __init__(self, model: Classifier, surrogate: Classifier, window: int):
        if surrogate.kept is None:
            raise ValueError("prefix_of needs a surrogate made by prune(); this model has no pruned neurons")
        self.model, self.kept, self.window = model, surrogate.kept, window
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for block, kept in zip(self.model.family.block_list(self.model.base), self.kept, strict=True):
            _, output = self.model.family.neuron_layers(block)
            silent = torch.zeros(output.in_features, dtype=torch.bool, device=self.model.device)
            silent[kept.to(self.model.device)] = True
            self.handles.append(output.register_forward_pre_hook(self._hook(silent)))

    def _hook(self, kept: Tensor) -> Any:
        def hook(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            neurons = inputs[0]
            pruned = torch.where(kept, neurons[:, -self.window :], torch.zeros_like(neurons[:, -self.window :]))
            return (torch.cat([neurons[:, : -self.window], pruned], dim=1),)

        return hook

    def __exit__(self, *_: object) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles.clear()


def one_hot_gradient(gradient: Tensor, embedding: Tensor) -> Tensor:
    """d loss / d one-hot [N, V], float32, from d loss / d embedding [N, D] and the embedding matrix [V, D].

    Multiplied in float32 at least, under autocast too, a block of the vocabulary at a time: in bfloat16 many tokens
    would tie.
    """
    dtype = torch.promote_types(gradient.dtype, torch.float32)
    with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
        blocks = embedding.detach().split(16384)
        return torch.cat([gradient.to(dtype) @ block.to(dtype).T for block in blocks], dim=1).float()


def check_search(content: tuple[int, ...], at: int, batch_size: int) -> None:
    """Refuse what cannot be searched."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= at <= len(content):
        raise ValueError(f"the attack's place must be between 0 and {len(content)}, the content's length, got {at}")


class FullSearch:
    """A discrete attack whose candidates each run over the whole sequence."""

    def __init__(self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int):
        check_search(content, at, batch_size)
        self.defended, self.batch_size = defended, batch_size
        self.content = torch.tensor(content, dtype=torch.long, device=defended.classifier.device)
        self.label, self.at = label, at

    def _tokens(self, attack: Tensor) -> Tensor:
        """Full sequences [C, T + N] of attack rows [C, N]."""
        content = self.content.expand(attack.shape[0], -1)
        return torch.cat([content[:, : self.at], attack, content[:, self.at :]], dim=1)

    def _prepared(self, tokens: Tensor) -> FullPrepared:
        labels = torch.full((tokens.shape[0],), self.label, device=tokens.device)
        batch = Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), labels, padded=False)
        return FullPrepared(self.defended.classifier, batch, self.defended.window)

    @torch.enable_grad()
    def gradient(self, attack: Tensor) -> Tensor:
        model = self.defended.classifier
        tokens = self._tokens(attack.to(self.content.device)[None])
        embeddings = model.embedding(tokens).detach().requires_grad_(True)
        leaf_copy = embeddings.clone()  # torch's FLOP counter refuses a leaf as a module's output
        with model.edited({0: lambda _state: leaf_copy}):
            logits = self._prepared(tokens).logits(self.defended.edits)
        loss = F.cross_entropy(logits, torch.tensor([self.label], device=logits.device))
        (gradient,) = torch.autograd.grad(loss, embeddings)
        attacked = gradient[0, self.at : self.at + attack.shape[0]]
        return one_hot_gradient(attacked, model.embedding.weight)

    @torch.no_grad()
    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        candidates = candidates.to(self.content.device)
        return in_batches(self, candidates, lambda part: self._prepared(self._tokens(part)).logits(self.defended.edits))


class Batched(Protocol):
    """A search that runs at most ``batch_size`` candidates together."""

    batch_size: int
    label: int


def in_batches(search: Batched, candidates: Tensor, logits_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Losses [C] and logits [C, 2] of candidates [C, N], ``search.batch_size`` at a time.

    When a batch does not fit the device's memory it is halved, and the rest go on with the smaller size; each
    candidate's loss is the same whatever the size.
    """
    rows: list[Tensor] = []
    done = 0
    while done < len(candidates):
        part = candidates[done : done + search.batch_size]
        try:
            rows.append(logits_of(part))
        except torch.OutOfMemoryError:
            if search.batch_size == 1:
                raise
            search.batch_size = max(1, search.batch_size // 2)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            continue
        done += len(part)
    logits = torch.cat(rows)
    return losses_of(logits, torch.full((len(logits),), search.label, device=logits.device)), logits


class ReferenceEngine:
    """Full-sequence passes."""

    name = "reference"

    def prepare(
        self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None
    ) -> FullPrepared:
        return FullPrepared(model, batch, window, prefix_of)

    def search(self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int) -> FullSearch:
        return FullSearch(defended, content, at, label, batch_size)

    def groups(self, defended: Defended, places: Sequence[tuple[int, int]], size: int) -> list[list[int]]:
        return [[index] for index in range(len(places))]

    def group(self, searches: Sequence[TokenSearch], tokens: int, size: int) -> SearchGroup:
        raise NotImplementedError("the reference attacks one example at a time")
