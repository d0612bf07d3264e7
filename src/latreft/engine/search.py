"""A discrete attack whose candidates share the content before the attacked tokens."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from latreft.engine.graphs import (
    Captured,
    Graphs,
    capture,
    rounded,
)
from latreft.engine.interface import Defended
from latreft.engine.prefix import Prefix, record_prefix
from latreft.engine.reference import check_search, in_batches, one_hot_gradient
from latreft.engine.whole import FixedBatch, filling, launch_bound
from latreft.engine.window import EAGER, Tools
from latreft.models.batch import Batch
from latreft.models.classifier import Edit


@dataclass(frozen=True)
class SharedContent:
    """What all candidates of an attack, or of E attacks, share: the prefix before them, their positions [E, N + rest],
    and how many of their last positions the defense edits."""

    prefix: Prefix
    positions: Tensor
    edited: int


class ReuseSearch:
    """A discrete attack whose candidates share the content before the attacked tokens, edited as the defense edits it.

    The candidates' keys and values are their own; the prefix's are stored once and never copied.
    """

    def __init__(
        self,
        defended: Defended,
        content: tuple[int, ...],
        at: int,
        label: int,
        batch_size: int,
        tools: Tools = EAGER,
    ):
        check_search(content, at, batch_size)
        self.defended, self.label, self.batch_size, self.tools = defended, label, batch_size, tools
        self.before = torch.tensor([content[:at]], dtype=torch.long, device=defended.classifier.device)
        self.rest = torch.tensor(content[at:], dtype=torch.long, device=defended.classifier.device)
        self.shared: dict[int, SharedContent] = {}

    def shared_by(self, count: int) -> SharedContent:
        """The shared part of attacks with ``count`` tokens: where the window begins depends on their number."""
        if count not in self.shared:
            at, length = self.before.shape[1], count + len(self.rest)
            inside = max(0, min(at, self.defended.window - length))
            places = torch.arange(at, at + length, device=self.before.device)[None]
            self.shared[count] = SharedContent(self._prefix(length, inside), places, min(self.defended.window, length))
        return self.shared[count]

    def _prefix(self, length: int, inside: int) -> Prefix:
        """The prefix for ``length`` further positions, its last ``inside`` ones edited; captured for small models."""
        model, at, graphs = self.defended.classifier, self.before.shape[1], self.tools.graphs
        batch = Batch(self.before, torch.ones_like(self.before, dtype=torch.bool), self.before[0, :1], padded=False)

        def pass_over(one: Batch) -> Prefix:
            with self.tools.compiling(model), model.edited(self._edit(inside)):
                return record_prefix(model, one, one.length, length)

        room = rounded(at, 1)
        if graphs is None or at == 0 or not (graphs.usable(model.device) and launch_bound(model, room)):
            return pass_over(batch)
        key = ("content", *self.defense_key(), length, inside, room, filling(batch, room))
        fixed, run = graphs.once(key, self.defended, lambda: captured_on(FixedBatch(batch, room), pass_over, graphs))
        fixed.fill(batch)
        return run().clone()

    def defense_key(self) -> tuple[Hashable, ...]:
        """What is attacked."""
        reft = self.defended.reft
        edit = (id(reft.intervention), reft.layer) if reft else None
        return id(self.defended.classifier), edit, self.defended.window

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

    def logits_of(self, rows: Tensor, shared: SharedContent) -> Tensor:
        """Logits [E · C, 2] of attack rows [E · C, N], those of one example next to each other."""
        return self._logits(self._embedded(rows), shared)

    def _logits(self, embeddings: Tensor, shared: SharedContent) -> Tensor:
        """Logits [E · C, 2] of the embedded rows [E · C, N + rest, D]."""
        model, variants = self.defended.classifier, len(embeddings) // len(shared.positions)
        told = shared.prefix.for_block(variants)
        with self.tools.compiling(model), model.passing(told), model.edited(self._edit(shared.edited)):
            output = model.base(
                inputs_embeds=embeddings,
                attention_mask=shared.prefix.window_bias,
                position_ids=shared.positions.repeat_interleave(variants, dim=0),
                use_cache=False,
            )
        return model.classify(output.last_hidden_state[:, -1])

    def gradients_of(self, attacks: Tensor, labels: Tensor, shared: SharedContent) -> Tensor:
        """d loss / d one-hot [E, N, V] of attack tokens [E, N]; ``labels`` [E]."""
        with torch.enable_grad():
            embeddings = self._embedded(attacks).detach().requires_grad_(True)
            # A view, for torch's FLOP counter refuses a leaf that a hooked module is given.
            loss = F.cross_entropy(self._logits(embeddings.view_as(embeddings), shared), labels, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, embeddings)
        count = attacks.shape[1]
        flat = one_hot_gradient(gradient[:, :count].flatten(0, 1), self.defended.classifier.embedding.weight)
        return flat.view(len(attacks), count, -1)

    def gradient(self, attack: Tensor) -> Tensor:
        attack, label = attack.to(self.rest.device), self.before.new_tensor([self.label])
        place = self._place(len(attack))
        if place is None:
            return self.gradients_of(attack[None], label, self.shared_by(len(attack)))[0]

        def function(tokens: Tensor, fixed_label: Tensor) -> Tensor:
            return self.gradients_of(tokens[None], fixed_label, place.shared)[0]

        return place.once(("gradient", len(attack)), lambda: capture(function, [attack, label], place.pool))(
            attack, label
        ).clone()

    def _losses(self, part: Tensor) -> Tensor:
        """Logits [C, 2] of candidates [C, N]; captured for a few sizes, the surplus rows being copies of the first.

        A small model has one size only: a pass over all rows takes less than capturing another size.
        """
        place = self._place(part.shape[1])
        if place is None:
            return self.logits_of(part, self.shared_by(part.shape[1]))
        small = launch_bound(self.defended.classifier, self.batch_size * part.shape[1])
        size = self.batch_size if small else min(self.batch_size, 1 << (len(part) - 1).bit_length())
        padded = torch.cat([part, part[:1].expand(size - len(part), -1)])

        def function(tokens: Tensor) -> Tensor:
            return self.logits_of(tokens, place.shared)

        captured = place.once(("losses", padded.shape), lambda: capture(function, [padded], place.pool))
        return captured(padded)[: len(part)].clone()

    def _place(self, count: int) -> Place | None:
        """The fixed place for suffixes of ``count`` tokens, filled with this example; None where nothing is captured."""
        graphs = self.tools.graphs
        if graphs is None or len(self.rest) or not graphs.usable(self.before.device):
            return None
        shared = self.shared_by(count)
        room = rounded(shared.prefix.positions, 1)
        key = ("place", *self.defense_key(), count, room)
        place = graphs.once(key, self.defended, lambda: Place(shared, room, graphs))
        if place.owner is not self:
            place.fill(self, shared)
        return place

    @torch.no_grad()
    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        return in_batches(self, candidates.to(self.rest.device), self._losses)


def captured_on(fixed: FixedBatch, pass_over: Callable[[Batch], Prefix], graphs: Graphs) -> tuple[FixedBatch, Captured]:
    """A fixed batch, and the captured pass over it."""
    return fixed, capture(lambda: pass_over(fixed.batch), [], graphs.pool)


class Place:
    """A fixed place for the shared content of attacks on one model, on which candidates' passes are captured."""

    def __init__(self, like: SharedContent, room: int, graphs: Graphs):
        self.graphs = graphs
        self.owner: ReuseSearch | None = None
        self.shared = SharedContent(like.prefix.roomy(room), like.positions.clone(), like.edited)

    @property
    def pool(self) -> Any:
        return self.graphs.pool

    def fill(self, owner: ReuseSearch, shared: SharedContent) -> None:
        """Take in another example's content."""
        self.owner = owner
        self.shared.prefix.take(shared.prefix)
        self.shared.positions.copy_(shared.positions)

    def once(self, key: Hashable, make: Callable[[], Captured]) -> Captured:
        return self.graphs.once((id(self), key), self, make)
