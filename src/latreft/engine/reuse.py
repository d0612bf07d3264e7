"""The default engine: exact prefix reuse. One pass over the prefix, everything else on the window's tokens.

Everything that changes between passes, the perturbation and the edit, is at the last L positions. Attention is causal,
so the keys and values of every earlier position are the same in all passes, and no gradient is needed there. Below the
lowest edited layer the window does not change either: passes start from its stored hidden state. ``docs/engine.md``
has the argument and its conditions.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.engine.interface import Defended
from latreft.engine.reference import FullPrepared, FullSearch, check_search, in_batches, losses_of, one_hot_gradient
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.attention import MASKED, Prefix, Record
from latreft.models.batch import Batch, positions
from latreft.models.classifier import Classifier, Edit


def blocks_above(model: Classifier, layer: int) -> nn.Module:
    """The base model without its first ``layer`` blocks; it shares every parameter with ``model``."""
    base = model.base
    upper = copy.copy(base)
    upper._modules = dict(base._modules)
    setattr(upper, model.family.blocks, nn.ModuleList(list(model.family.block_list(base))[layer:]))
    return upper


def window_logits(
    model: Classifier,
    start: int,
    hidden: Tensor,
    prefix: Prefix,
    window_positions: Tensor,
    edits: Sequence[Edits],
    mask: Tensor,
) -> Tensor:
    """Logits [V, E, 2] of E windows, each run with its stored prefix in V ways.

    ``hidden`` [E, V, L, D] are the window's states of layer ``start``, the edits of that layer done; ``edits`` are V
    ways to edit the layers above. ``window_positions`` [E, L]; ``mask`` [E, L].
    """
    examples, variants, length, width = hidden.shape

    def edit_of(layer: int) -> Edit:
        def edit(state: Tensor) -> Tensor:
            each = state.view(examples, variants, length, width)
            edited = [one.apply(layer, each[:, i], mask) for i, one in enumerate(edits)]
            return torch.stack(edited, dim=1).view_as(state)

        return edit

    above = sorted({layer for one in edits for layer in one.layers() if layer > start})
    with model.edited({layer: edit_of(layer) for layer in above}):
        output = blocks_above(model, start)(
            inputs_embeds=hidden.reshape(examples * variants, length, width),
            attention_mask=prefix.window_bias,  # not read: only a 4-d mask keeps the model from making one
            position_ids=window_positions.repeat_interleave(variants, dim=0),
            use_cache=False,
            prefix=replace(prefix, variants=variants),
        )
    logits = model.classify(output.last_hidden_state[:, -1])
    return logits.view(examples, variants, -1).transpose(0, 1)


def biases(mask: Tensor, window: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Who may attend to whom, as scores added: prefix [E, 1, 1, P] and window [E, 1, L, L].

    A real position sees the real positions up to itself; a padded one sees itself (and never matters).
    """
    prefix_mask, window_mask = mask[:, :-window], mask[:, -window:]
    causal = torch.ones(window, window, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(window, dtype=torch.bool, device=mask.device)
    seen = (causal & window_mask[:, None, :] & window_mask[:, :, None]) | itself

    def bias(allowed: Tensor) -> Tensor:
        return torch.zeros(allowed.shape, dtype=dtype, device=mask.device).masked_fill(~allowed, MASKED)

    return bias(prefix_mask)[:, None, None], bias(seen)[:, None]


class Stored:
    """What one pass without gradient leaves behind: the prefix's keys and values, the window's states of every layer."""

    def __init__(self, model: Classifier, batch: Batch, window: int):
        record, states = Record(), dict[int, Tensor]()

        def keep(layer: int) -> Edit:
            def catch(state: Tensor) -> Tensor:
                states[layer] = state[:, -window:]
                return state

            return catch

        with torch.no_grad(), model.edited({layer: keep(layer) for layer in range(model.layers + 1)}):
            model.logits_of_embeddings(model.embedding(batch.tokens), batch, record=record)
        accurate = torch.promote_types(model.dtype, torch.float32)
        self.states = {layer: state.clone() for layer, state in states.items()}
        self.prefix = Prefix(
            {layer: key[:, :, :-window] for layer, key in record.keys.items()},
            {layer: value[:, :, :-window] for layer, value in record.values.items()},
            *biases(batch.mask, window, accurate),
        )
        self.positions = positions(batch.mask)[:, -window:]


class ReusePrepared:
    """A batch whose passes run over its last L positions, from the lowest layer that changes."""

    def __init__(self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.model, self.batch, self.prefix_of = model, batch, prefix_of
        self.window = min(window, batch.length)
        self.mask = batch.mask[:, -self.window :]
        self._stored: Stored | None = None
        self._weights: int | None = None

    def _version(self) -> int:
        """Changes with every in-place change of a trainable weight."""
        return sum(p._version for p in self.model.parameters() if p.requires_grad)

    @property
    def stored(self) -> Stored:
        """The stored prefix, made at the first use; an error where the weights have changed since."""
        if self._stored is None:
            self._stored = Stored(self.prefix_of or self.model, self.batch, self.window)
            self._weights = self._version()
        elif self._weights != self._version():
            raise RuntimeError("the model's weights changed after this batch was prepared; prepare it again")
        return self._stored

    def hidden(self, layer: int) -> Tensor:
        if self.prefix_of is not None and layer > 0:
            return self._surrogate_hidden(layer)
        self.model.layer_module(layer)
        return self.stored.states[layer]

    def _surrogate_hidden(self, layer: int) -> Tensor:
        """The window's state of a surrogate that has another model's prefix: run from the embeddings."""
        caught: list[Tensor] = []

        def catch(state: Tensor) -> Tensor:
            caught.append(state)
            return state

        stored = self.stored
        with torch.no_grad(), self.model.edited({layer: catch}):
            window_logits(
                self.model, 0, stored.states[0][:, None], stored.prefix, stored.positions, [Edits()], self.mask
            )
        return caught[0]

    def logits(self, edits: Edits) -> Tensor:
        return self.logits_each(edits)[0]

    def logits_each(self, *edits: Edits) -> Tensor:
        layers = [layer for one in edits for layer in one.layers()]
        start = min(layers, default=self.model.layers)
        clean = self._start_state(start, edits)
        hidden = torch.stack([one.apply(start, clean, self.mask) for one in edits], dim=1)
        stored = self.stored
        return window_logits(self.model, start, hidden, stored.prefix, stored.positions, edits, self.mask)

    def _start_state(self, start: int, edits: Sequence[Edits]) -> Tensor:
        """The clean state of the lowest edited layer; a surrogate's is not run where all edits replace it."""
        replaced = [
            one.perturbation for one in edits if one.perturbation is not None and one.perturbation.layer == start
        ]
        if len(replaced) == len(edits) and all(each.base is not None for each in replaced):
            return torch.zeros_like(replaced[0].delta)
        return self.hidden(start)

    def training_logits(self, edits: Edits) -> Tensor:
        return FullPrepared(self.model, self.batch, self.window, self.prefix_of).training_logits(edits)

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


@dataclass(frozen=True)
class SharedContent:
    """What all candidates of one attack share: the prefix before them, their positions [1, N + rest], and how many of
    their last positions the defense edits."""

    prefix: Prefix
    positions: Tensor
    edited: int


class ReuseSearch:
    """A discrete attack whose candidates share the content before the attacked tokens, edited as the defense edits it.

    The candidates' keys and values are their own; the prefix's are stored once and never copied.
    """

    def __init__(self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int):
        check_search(content, at, batch_size)
        self.defended, self.label, self.batch_size = defended, label, batch_size
        self.before = torch.tensor([content[:at]], dtype=torch.long, device=defended.classifier.device)
        self.rest = torch.tensor(content[at:], dtype=torch.long, device=defended.classifier.device)
        self.shared: dict[int, SharedContent] = {}

    def _shared(self, count: int) -> SharedContent:
        """The shared part of attacks with ``count`` tokens: where the window begins depends on their number."""
        if count not in self.shared:
            model, at, length = self.defended.classifier, self.before.shape[1], count + len(self.rest)
            mask = torch.ones_like(self.before, dtype=torch.bool)
            batch = Batch(self.before, mask, self.before.new_tensor([self.label]), padded=False)
            record = Record()
            inside = max(0, min(at, self.defended.window - length))
            with torch.no_grad(), model.edited(self._edit(inside)):
                model.logits_of_embeddings(model.embedding(self.before), batch, record=record)
            accurate = torch.promote_types(model.dtype, torch.float32)
            whole = torch.ones(1, at + length, dtype=torch.bool, device=model.device)
            prefix = Prefix(record.keys, record.values, *biases(whole, length, accurate))
            places = torch.arange(at, at + length, device=model.device)[None]
            self.shared[count] = SharedContent(prefix, places, min(self.defended.window, length))
        return self.shared[count]

    def _edit(self, last: int) -> dict[int, Edit]:
        """The defense's edit of the last ``last`` positions of a state."""
        reft = self.defended.reft
        if reft is None or last == 0:
            return {}

        def edit(state: Tensor) -> Tensor:
            return torch.cat([state[:, :-last], reft(state[:, -last:])], dim=1)

        return {reft.layer: edit}

    def _embedded(self, attack: Tensor) -> Tensor:
        """Embeddings [C, N + rest, D] of attack rows [C, N] and the content behind them."""
        rest = self.rest.expand(attack.shape[0], -1)
        return self.defended.classifier.embedding(torch.cat([attack.to(self.rest.device), rest], dim=1))

    def _logits(self, embeddings: Tensor) -> Tensor:
        """Logits [C, 2] of the embedded rows [C, N + rest, D]."""
        model, variants = self.defended.classifier, embeddings.shape[0]
        shared = self._shared(embeddings.shape[1] - len(self.rest))
        with model.edited(self._edit(shared.edited)):
            output = model.base(
                inputs_embeds=embeddings,
                attention_mask=shared.prefix.window_bias,
                position_ids=shared.positions.expand(variants, -1),
                use_cache=False,
                prefix=replace(shared.prefix, variants=variants),
            )
        return model.classify(output.last_hidden_state[:, -1])

    @torch.enable_grad()
    def gradient(self, attack: Tensor) -> Tensor:
        embeddings = self._embedded(attack[None]).detach().requires_grad_(True)
        loss = F.cross_entropy(self._logits(embeddings), self.before.new_tensor([self.label]))
        (gradient,) = torch.autograd.grad(loss, embeddings)
        return one_hot_gradient(gradient[0, : len(attack)], self.defended.classifier.embedding.weight)

    @torch.no_grad()
    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        return in_batches(self, candidates, lambda part: self._logits(self._embedded(part)))


class ReuseEngine:
    """Exact prefix reuse; full passes where nothing can be shared."""

    name = "reuse"

    def prepare(
        self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None
    ) -> ReusePrepared:
        return ReusePrepared(model, batch, window, prefix_of)

    def search(
        self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int
    ) -> ReuseSearch | FullSearch:
        """A prefix attack leaves nothing to share: it takes the full path."""
        if 2 * at <= len(content):
            return FullSearch(defended, content, at, label, batch_size)
        return ReuseSearch(defended, content, at, label, batch_size)
