"""Passes over the window alone, and what speeds them up: captured graphs and compiled blocks."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from latreft.engine.graphs import (
    Graphs,
    capturing_is_possible,
)
from latreft.engine.prefix import Prefix
from latreft.interventions.edits import Edits
from latreft.models.classifier import Classifier, Edit

Compiled = Literal[True, False, "inner"]
"""Which passes' blocks are compiled: those over prefixes and windows and captured steps of PGD over whole texts; none;
or prefix passes of prepared batches and steps of PGD, which ask for no gradient of weights."""


class Compiler:
    """Compiles the forward of decoder blocks: one for all blocks of a model, whatever their weights.

    With ``inner_only`` it is used for prefix passes of prepared batches and steps of PGD alone: most of what a training
    runs, for a part of the compiling.
    """

    def __init__(self, inner_only: bool = False) -> None:
        self.inner_only = inner_only
        self.runs: dict[type, Callable[..., Any]] = {}

    def serves(self, model: Classifier, inner: bool) -> bool:
        """Whether it is used for passes of ``model`` now: not while something counts FLOPs.

        Adapters differ in what they are called with, so that each block would be compiled on its own, for minutes: a model
        that has some is captured only.
        """
        wanted = (inner or not self.inner_only) and not model.adapted
        return wanted and capturing_is_possible(model.device)

    def run_of(self, model: Classifier) -> Callable[..., Any]:
        """The compiled forward of the model's blocks; called with the block first."""
        kind = type(model.family.block_list(model.base)[0])
        if kind not in self.runs:
            self._configure()
            self.runs[kind] = torch.compile(kind.forward)
        return self.runs[kind]

    def _configure(self) -> None:
        import torch._dynamo
        import torch._functorch.config
        import torch._inductor.config

        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        # The blocks of a surrogate differ in width: one compilation is to serve them all, as it serves all lengths.
        torch._dynamo.config.force_parameter_static_shapes = False
        torch._dynamo.config.force_nn_module_property_static_shapes = False
        # Code in these caches was compiled for the shapes that some other job saw first, and may sum in another order. A
        # profile (pgo) tells which sizes changed in another job.
        for config, name, variable in (
            (torch._inductor.config, "fx_graph_cache", "TORCHINDUCTOR_FX_GRAPH_CACHE"),
            (torch._inductor.config, "fx_graph_remote_cache", "TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE"),
            (torch._functorch.config, "enable_autograd_cache", "TORCHINDUCTOR_AUTOGRAD_CACHE"),
            (torch._functorch.config, "enable_remote_autograd_cache", "TORCHINDUCTOR_AUTOGRAD_REMOTE_CACHE"),
            (torch._dynamo.config, "automatic_dynamic_local_pgo", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_LOCAL_PGO"),
            (torch._dynamo.config, "automatic_dynamic_remote_pgo", "TORCH_DYNAMO_AUTOMATIC_DYNAMIC_REMOTE_PGO"),
        ):
            setattr(config, name, False)
            if getattr(config, name):
                raise ValueError(f"{variable} is {os.environ.get(variable)!r}; unset it, or set it to 0")
        if torch.are_deterministic_algorithms_enabled() and hasattr(torch._inductor.config, "deterministic"):
            torch._inductor.config.deterministic = True  # else kernels are chosen by timing them, anew in every job


@dataclass(frozen=True)
class Tools:
    """What an engine speeds its passes up with: captured graphs, compiled blocks; None of either is eager."""

    graphs: Graphs | None = None
    compiler: Compiler | None = None

    @contextmanager
    def compiling(self, model: Classifier, *, inner: bool = False) -> Iterator[Classifier]:
        """Within the context the model's blocks run compiled, where a compiler serves such passes (``inner``: prefix
        passes of prepared batches and steps of PGD)."""
        if self.compiler is None or not self.compiler.serves(model, inner):
            yield model
            return
        # A compiled backward pass gives all gradients or none: PGD wants none of the weights'.
        with model.blocks_run_by(self.compiler.run_of(model)), model.frozen() if inner else nullcontext():
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
