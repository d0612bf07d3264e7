"""The two-class classifier [Sec. 6.1, A.1]: a decoder and a linear head on the last token's final hidden state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.models.batch import Batch, causal_mask, positions
from latreft.models.families import Family

Edit = Callable[[Tensor], Tensor]


class Classifier(nn.Module):
    """A base model of a known family with a bias-free two-class head.

    Inputs are left-padded, so the last position is every row's last token. The head is applied in float32 whatever
    the weights are (float64 if they are float64), under autocast too: rounded to bfloat16, the losses of many
    candidates would tie.
    """

    def __init__(self, base: nn.Module, family: Family, classes: int = 2):
        super().__init__()
        self.base = base
        self.family = family
        self.kept: list[Tensor] | None = None
        """Of a pruned surrogate: the neurons that each block kept."""
        self.adapted = False
        """Whether layers have adapters, which run beside their weights."""
        embedding = family.embedding_layer(base).weight
        self.head = nn.Linear(embedding.shape[1], classes, bias=False, dtype=embedding.dtype, device=embedding.device)

    @property
    def layers(self) -> int:
        """Number of decoder blocks."""
        return len(self.family.block_list(self.base))

    @property
    def key_shape(self) -> tuple[int, int]:
        """H_kv and d: heads of keys and values, and the width of one."""
        config: Any = self.base.config
        heads = config.num_attention_heads
        depth = getattr(config, "head_dim", None) or config.hidden_size // heads
        return getattr(config, "num_key_value_heads", None) or heads, depth

    @property
    def width(self) -> int:
        """D."""
        return self.head.in_features

    @property
    def vocabulary(self) -> int:
        """V: rows of the token embedding."""
        return self.embedding.num_embeddings

    @property
    def embedding(self) -> nn.Embedding:
        return self.family.embedding_layer(self.base)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    @property
    def pass_dtype(self) -> torch.dtype:
        """The precision of the linear layers and of attention in a pass at present: autocast's, or the weights'."""
        kind = self.device.type
        return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else self.dtype

    def initialise_head(self, seed: int) -> None:
        """Draw the head from N(0, 0.02²), on the CPU, so that every device gets the same head."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            self.head.weight.copy_(0.02 * torch.randn(self.head.weight.shape, generator=generator))

    def layer_module(self, layer: int) -> nn.Module:
        """The module whose output is the hidden state of ``layer``: 0 the embedding, l the l-th block."""
        if not 0 <= layer <= self.layers:
            raise ValueError(f"layer {layer} does not exist: this model has layers 0 (embedding) to {self.layers}")
        return self.embedding if layer == 0 else self.family.block_list(self.base)[layer - 1]

    @contextmanager
    def edited(self, edits: Mapping[int, Edit]) -> Iterator[None]:
        """Within the context the output [B, T, D] of each layer in ``edits`` is replaced by ``edit(output)``.

        Hooks are removed on the way out, after an exception too.
        """

        def hook_of(edit: Edit) -> Callable[..., object]:
            def hook(_module: nn.Module, _inputs: object, output: object) -> object:
                if isinstance(output, tuple):
                    return (edit(output[0]), *output[1:])
                return edit(output)  # type: ignore[arg-type]

            return hook

        with ExitStack() as stack:
            for layer, edit in edits.items():
                handle = self.layer_module(layer).register_forward_hook(hook_of(edit))
                stack.callback(handle.remove)
            yield

    def forward(self, batch: Batch) -> Tensor:
        """Logits [B, 2] of a batch."""
        return self.logits_of_embeddings(self.embedding(batch.tokens), batch)

    @contextmanager
    def passing(self, arguments: Callable[[int], dict[str, Any]]) -> Iterator[None]:
        """Within the context the i-th block (from 0) is called with the keyword arguments ``arguments(i)`` as well."""

        def hook_of(index: int) -> Callable[..., object]:
            return lambda _module, args, kwargs: (args, kwargs | arguments(index))

        with ExitStack() as stack:
            for index, block in enumerate(self.family.block_list(self.base)):
                stack.callback(block.register_forward_pre_hook(hook_of(index), with_kwargs=True).remove)
            yield

    @contextmanager
    def blocks_run_by(self, run: Callable[..., Any] | None) -> Iterator[None]:
        """Within the context each block's forward is ``run(block, …)``: a compiled one, say. None changes nothing."""
        if run is None:
            yield
            return
        blocks = list(self.family.block_list(self.base))
        for block in blocks:
            block.forward = partial(run, block)
        try:
            yield
        finally:
            for block in blocks:
                del block.forward

    def twin(self) -> Classifier:
        """Modules of its own that share every weight and buffer with this one's."""
        shared = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        return copy.deepcopy(self, memo=shared)  # type: ignore[arg-type]

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within the context no weight requires a gradient."""
        trained = [parameter for parameter in self.parameters() if parameter.requires_grad]
        for parameter in trained:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)

    def logits_of_embeddings(self, embeddings: Tensor, batch: Batch) -> Tensor:
        """Logits [B, 2] from a batch's token embeddings [B, T, D]."""
        output = self.base(
            inputs_embeds=embeddings,
            attention_mask=causal_mask(batch.mask) if batch.padded else None,
            position_ids=positions(batch.mask),
            use_cache=False,
        )
        return self.classify(output.last_hidden_state[:, -1])

    def classify(self, hidden: Tensor) -> Tensor:
        """Logits [B, 2] of the last token's final hidden state [B, D], at least in float32."""
        dtype = torch.promote_types(self.head.weight.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.to(dtype), self.head.weight.to(dtype))


def linear_of(weight: nn.Parameter, bias: nn.Parameter | None) -> nn.Linear:
    """A linear layer of these very tensors, which may have no inputs or no outputs."""
    outputs, inputs = weight.shape
    layer = nn.Linear(max(1, inputs), max(1, outputs), bias=False, device="meta")
    layer.in_features, layer.out_features = inputs, outputs
    layer.weight = weight
    layer.bias = bias  # type: ignore[assignment]
    return layer


def check_fit(shapes: Mapping[str, torch.Size], weights: Mapping[str, Tensor], what: str) -> None:
    """A missing or unexpected tensor, or one of another shape, is a ``ValueError`` that names it; ``what`` names them all."""
    missing, unexpected = sorted(set(shapes) - set(weights)), sorted(set(weights) - set(shapes))
    if missing or unexpected:
        raise ValueError(f"{what} do not fit the classifier: missing {missing[:3]}, unexpected {unexpected[:3]}")
    for name, shape in shapes.items():
        if shape != weights[name].shape:
            both = f"{list(weights[name].shape)}, the classifier's is {list(shape)}"
            raise ValueError(f"{what} do not fit the classifier: {name} is {both}")


def load_parameters(
    module: nn.Module, weights: Mapping[str, Tensor], what: str, *, trainable_only: bool = False
) -> None:
    """Copy saved tensors into the parameters of ``module``; ``ValueError`` where they do not fit (:func:`check_fit`)."""
    own = {name: p for name, p in module.named_parameters() if p.requires_grad or not trainable_only}
    check_fit({name: parameter.shape for name, parameter in own.items()}, weights, what)
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(weights[name])


def parameter_count(module: nn.Module, trainable_only: bool = False) -> int:
    """Parameters of a module, each shared tensor counted once."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable_only)
