"""The default engine: exact prefix reuse. One pass over the prefix, everything else on the window's tokens.

Everything that changes between passes, the perturbation and the edit, is at the last L positions. Attention is causal,
so the keys and values of every earlier position are the same in all passes, and no gradient is needed there. Below the
lowest edited layer the window does not change either: passes start from its stored hidden state. ``docs/engine.md``
has the argument and its conditions.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.engine.graphs import (
    Captured,
    Form,
    Graphs,
    PrefixBuffers,
    capture,
    capturing_is_possible,
    flatten,
    rounded,
    unflatten,
)
from latreft.engine.interface import Defended
from latreft.engine.prefix import Prefix, record_prefix
from latreft.engine.reference import FullPrepared, FullSearch, check_search, in_batches, losses_of, one_hot_gradient
from latreft.interventions import pgd
from latreft.interventions.edits import Edits
from latreft.models.batch import Batch, positions
from latreft.models.classifier import Classifier, Edit


class Compiler:
    """Compiles the forward of decoder blocks: one for all blocks of a model, whatever their weights."""

    def __init__(self) -> None:
        self.runs: dict[type, Callable[..., Any]] = {}

    def run_of(self, model: Classifier) -> Callable[..., Any]:
        """The compiled forward of the model's blocks; called with the block first."""
        import torch._dynamo

        kind = type(model.family.block_list(model.base)[0])
        if kind not in self.runs:
            torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
            self.runs[kind] = torch.compile(kind.forward)
        return self.runs[kind]


@dataclass(frozen=True)
class Tools:
    """What an engine speeds its passes up with: captured graphs, compiled blocks; None of either is eager."""

    graphs: Graphs | None = None
    compiler: Compiler | None = None

    @contextmanager
    def compiling(self, model: Classifier) -> Iterator[Classifier]:
        """Within the context the model's blocks run compiled, where the engine has a compiler and nothing counts FLOPs."""
        use = self.compiler is not None and capturing_is_possible(model.device)
        with model.blocks_run_by(self.compiler.run_of(model) if use and self.compiler else None):
            yield model


EAGER = Tools()


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
    with model.passing(prefix.for_block(variants)), model.edited({layer: edit_of(layer) for layer in above}):
        output = blocks_above(model, start)(
            inputs_embeds=hidden.reshape(examples * variants, length, width),
            attention_mask=prefix.window_bias,  # not read: only a 4-d mask keeps the model from making one
            position_ids=window_positions.repeat_interleave(variants, dim=0),
            use_cache=False,
        )
    logits = model.classify(output.last_hidden_state[:, -1])
    return logits.view(examples, variants, -1).transpose(0, 1)


class Stored:
    """What one pass without gradient leaves behind: the prefix's keys and values, the window's states of every layer."""

    def __init__(self, model: Classifier, batch: Batch, window: int):
        states: dict[int, Tensor] = {}

        def keep(layer: int) -> Edit:
            def catch(state: Tensor) -> Tensor:
                states[layer] = state[:, -window:]
                return state

            return catch

        with model.edited({layer: keep(layer) for layer in range(model.layers + 1)}):
            self.prefix = record_prefix(model, batch, batch.length - window, window)
        self.states = {layer: state.clone() for layer, state in states.items()}
        self.positions = positions(batch.mask)[:, -window:]


class ReusePrepared:
    """A batch whose passes run over its last L positions, from the lowest layer that changes.

    With ``graphs``, passes are captured once a shape and replayed, where the device can.
    """

    def __init__(
        self,
        model: Classifier,
        batch: Batch,
        window: int,
        prefix_of: Classifier | None = None,
        tools: Tools = EAGER,
    ):
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.model, self.batch, self.prefix_of, self.tools = model, batch, prefix_of, tools
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
            with self.tools.compiling(self.prefix_of or self.model) as model:
                self._stored = Stored(model, self.batch, self.window)
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
        if (twin := self._twin()) is not None and torch.is_grad_enabled():
            flat = flatten(edits)
            if flat is not None and any(tensor.requires_grad for tensor in flat[1]):
                return twin.graphed_logits(*flat)
        return self._logits_each(*edits)

    def _logits_each(self, *edits: Edits) -> Tensor:
        start = lowest(self.model, edits)
        clean = self._start_state(start, edits)
        hidden = torch.stack([one.apply(start, clean, self.mask) for one in edits], dim=1)
        stored = self.stored
        with self.tools.compiling(self.model) as model:
            return window_logits(model, start, hidden, stored.prefix, stored.positions, edits, self.mask)

    def _twin(self) -> Twin | None:
        """The fixed-place twin of this batch's shape, filled with this batch; None where nothing can be captured."""
        graphs = self.tools.graphs
        if graphs is None or not capturing_is_possible(self.model.device):
            return None
        room = rounded(self.stored.prefix.positions)
        key = ("twin", id(self.model), id(self.prefix_of), len(self.batch), self.window, room)
        twin = graphs.once(key, (self.model, self.prefix_of), lambda: Twin(self, graphs, room))
        if twin.owner is not self:
            twin.fill(self)
        return twin

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
        flat = flatten([defended.perturbed(layer, start, base)])
        if flat is not None and (twin := self._twin()) is not None:
            return twin.graphed_ascent(*flat, labels, ball, steps=steps, step_size=step_size)

        def loss_of(delta: Tensor) -> Tensor:
            return losses_of(self._logits_each(defended.perturbed(layer, delta, base))[0], labels)

        return pgd.ascend(loss_of, start, self.mask, ball, steps=steps, step_size=step_size)


class Twin(ReusePrepared):
    """A prepared batch in a fixed place, on which passes are captured; see :mod:`latreft.engine.graphs`."""

    def __init__(self, like: ReusePrepared, graphs: Graphs, room: int):
        self.model, self.prefix_of, self.window, self.tools = like.model, like.prefix_of, like.window, like.tools
        self.graphs: Graphs = graphs
        self.owner: ReusePrepared | None = None
        self.mask = like.mask.clone()
        self.buffers = PrefixBuffers(like.stored.prefix, room)
        self._own = copy.copy(like.stored)
        self._own.prefix = self.buffers.prefix
        self._own.positions = like.stored.positions.clone()
        self._own.states = {layer: state.clone() for layer, state in like.stored.states.items()}

    @property
    def stored(self) -> Stored:
        return self._own

    def fill(self, one: ReusePrepared) -> None:
        """Take the place of ``one``: copy what it stored."""
        self.owner = one
        self.mask.copy_(one.mask)
        self.buffers.fill(one.stored.prefix)
        self.stored.positions.copy_(one.stored.positions)
        for layer, state in one.stored.states.items():
            self.stored.states[layer].copy_(state)

    def _key(self, what: str, form: Form, *more: Hashable) -> Hashable:
        return (what, id(self), form, *more)

    def graphed_logits(self, form: Form, tensors: list[Tensor]) -> Tensor:
        """Logits of the edits, differentiable in those of ``tensors`` that require a gradient."""

        def function(*inputs: Tensor) -> Tensor:
            return self._logits_each(*unflatten(form, inputs))

        def make() -> Callable[..., Tensor]:
            sample = tuple(t.detach().clone().requires_grad_(t.requires_grad) for t in tensors)
            graphed: Any = torch.cuda.make_graphed_callables(
                function, sample, pool=self.graphs.pool, allow_unused_input=True
            )
            return graphed

        wants = tuple(tensor.requires_grad for tensor in tensors)
        return self.graphs.once(self._key("logits", form, wants), self, make)(*tensors).clone()

    def graphed_ascent(
        self, form: Form, tensors: list[Tensor], labels: Tensor, ball: pgd.Ball, *, steps: int, step_size: float
    ) -> Tensor:
        """K replays of one PGD step; the first of ``tensors`` is the start."""

        def function(delta: Tensor, fixed_labels: Tensor, *rest: Tensor) -> Tensor:
            def loss_of(moved: Tensor) -> Tensor:
                return losses_of(self._logits_each(*unflatten(form, [moved, *rest]))[0], fixed_labels)

            delta.copy_(pgd.step(loss_of, delta.detach().clone(), self.mask, ball, step_size))
            return delta

        delta, *rest = tensors
        inputs = [ball.project(delta.detach() * self.mask[..., None]), labels, *(t.detach() for t in rest)]
        key = self._key("ascent", form, ball, step_size)
        step = self.graphs.once(key, self, lambda: capture(function, inputs, self.graphs.pool))
        step(*inputs)
        for _ in range(steps - 1):
            step.graph.replay()
        return step.output.clone()


def lowest(model: Classifier, edits: Sequence[Edits]) -> int:
    """The lowest edited layer, from which passes start; the last one where nothing is edited."""
    return min((layer for one in edits for layer in one.layers()), default=model.layers)


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

    def _shared(self, count: int) -> SharedContent:
        """The shared part of attacks with ``count`` tokens: where the window begins depends on their number."""
        if count not in self.shared:
            model, at, length = self.defended.classifier, self.before.shape[1], count + len(self.rest)
            mask = torch.ones_like(self.before, dtype=torch.bool)
            batch = Batch(self.before, mask, self.before.new_tensor([self.label]), padded=False)
            inside = max(0, min(at, self.defended.window - length))
            with self.tools.compiling(model), model.edited(self._edit(inside)):
                prefix = record_prefix(model, batch, at, length)
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

    def _logits(self, embeddings: Tensor, shared: SharedContent) -> Tensor:
        """Logits [C, 2] of the embedded rows [C, N + rest, D]."""
        model, variants = self.defended.classifier, embeddings.shape[0]
        told = shared.prefix.for_block(variants)
        with self.tools.compiling(model), model.passing(told), model.edited(self._edit(shared.edited)):
            output = model.base(
                inputs_embeds=embeddings,
                attention_mask=shared.prefix.window_bias,
                position_ids=shared.positions.expand(variants, -1),
                use_cache=False,
            )
        return model.classify(output.last_hidden_state[:, -1])

    def _gradient(self, attack: Tensor, label: Tensor, shared: SharedContent) -> Tensor:
        """d loss / d one-hot [N, V] of attack tokens [N]; ``label`` [1]."""
        with torch.enable_grad():
            embeddings = self._embedded(attack[None]).detach().requires_grad_(True)
            # A view, for torch's FLOP counter refuses a leaf that a hooked module is given.
            loss = F.cross_entropy(self._logits(embeddings.view_as(embeddings), shared), label)
            (gradient,) = torch.autograd.grad(loss, embeddings)
        return one_hot_gradient(gradient[0, : len(attack)], self.defended.classifier.embedding.weight)

    def gradient(self, attack: Tensor) -> Tensor:
        attack, label = attack.to(self.rest.device), self.before.new_tensor([self.label])
        place = self._place(len(attack))
        if place is None:
            return self._gradient(attack, label, self._shared(len(attack)))

        def function(tokens: Tensor, fixed_label: Tensor) -> Tensor:
            return self._gradient(tokens, fixed_label, place.shared)

        return place.once(("gradient", len(attack)), lambda: capture(function, [attack, label], place.pool))(
            attack, label
        ).clone()

    def _losses(self, part: Tensor) -> Tensor:
        """Logits [C, 2] of candidates [C, N]; captured for a few sizes, the surplus rows being copies of the first."""
        place = self._place(part.shape[1])
        if place is None:
            return self._logits(self._embedded(part), self._shared(part.shape[1]))
        size = min(self.batch_size, 1 << (len(part) - 1).bit_length())
        padded = torch.cat([part, part[:1].expand(size - len(part), -1)])

        def function(tokens: Tensor) -> Tensor:
            return self._logits(self._embedded(tokens), place.shared)

        captured = place.once(("losses", padded.shape), lambda: capture(function, [padded], place.pool))
        return captured(padded)[: len(part)].clone()

    def _place(self, count: int) -> Place | None:
        """The fixed place for suffixes of ``count`` tokens, filled with this example; None where nothing is captured."""
        graphs = self.tools.graphs
        if graphs is None or len(self.rest) or not capturing_is_possible(self.before.device):
            return None
        shared = self._shared(count)
        room = rounded(shared.prefix.positions)
        reft = self.defended.reft
        key = (
            "place",
            id(self.defended.classifier),
            id(reft.intervention) if reft else 0,
            self.defended.window,
            count,
            room,
        )
        place = graphs.once(key, self.defended, lambda: Place(shared, room, graphs))
        if place.owner is not self:
            place.fill(self, shared)
        return place

    @torch.no_grad()
    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        return in_batches(self, candidates.to(self.rest.device), self._losses)


class Place:
    """A fixed place for the shared content of attacks on one model, on which candidates' passes are captured."""

    def __init__(self, like: SharedContent, room: int, graphs: Graphs):
        self.graphs = graphs
        self.owner: ReuseSearch | None = None
        self.buffers = PrefixBuffers(like.prefix, room)
        self.shared = SharedContent(self.buffers.prefix, like.positions.clone(), like.edited)

    @property
    def pool(self) -> Any:
        return self.graphs.pool

    def fill(self, owner: ReuseSearch, shared: SharedContent) -> None:
        """Take in another example's content."""
        self.owner = owner
        self.buffers.fill(shared.prefix)
        self.shared.positions.copy_(shared.positions)

    def once(self, key: Hashable, make: Callable[[], Captured]) -> Captured:
        return self.graphs.once((id(self), key), self, make)


class ReuseEngine:
    """Exact prefix reuse; full passes where nothing can be shared.

    ``capture`` False keeps every pass eager. ``compiled`` has the blocks of prefix and window passes compiled, which
    fuses their many small kernels; it takes a minute a job and a family of shapes, and pays on long trainings.
    """

    name = "reuse"

    def __init__(self, capture: bool = True, compiled: bool = False) -> None:
        self.tools = Tools(Graphs() if capture else None, Compiler() if compiled else None)

    def prepare(
        self, model: Classifier, batch: Batch, window: int, prefix_of: Classifier | None = None
    ) -> ReusePrepared:
        return ReusePrepared(model, batch, window, prefix_of, self.tools)

    def search(
        self, defended: Defended, content: tuple[int, ...], at: int, label: int, batch_size: int
    ) -> ReuseSearch | FullSearch:
        """A prefix attack leaves nothing to share: it takes the full path."""
        if 2 * at <= len(content):
            return FullSearch(defended, content, at, label, batch_size)
        return ReuseSearch(defended, content, at, label, batch_size, self.tools)
