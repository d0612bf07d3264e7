"""The heads of a classifier on real texts whose last tokens are replaced: what Theorems 1 and 2 say of real attention.

The theorems know no norm, no rotary embedding and no bias. Here the state of a token is what the head reads, behind the
norm; the rotary embedding is a rotation, which is part of W_Q and W_K at each position and leaves their norms alone; a
bias falls out of every difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from latreft.models.attention import NAME, attention
from latreft.models.batch import Batch
from latreft.models.classifier import Classifier
from latreft.theory.heads import Heads, Run


@dataclass
class _Seen:
    """What the attention of each block, first to last, saw in one pass: queries [B, H, T, d], keys and values [B, H_kv, T, d]."""

    modules: list[nn.Module] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


@contextmanager
def _watched() -> Iterator[_Seen]:
    """Within the context every call of the project's attention is noted down."""
    seen = _Seen()

    def watch(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        scaling = kwargs.get("scaling")
        theirs = 1.0 if scaling is None else scaling * query.shape[-1] ** 0.5  # the theorem divides by √d
        seen.modules.append(module)
        seen.queries.append(query.detach() * theirs)
        seen.keys.append(key.detach())
        seen.values.append(value.detach())
        return attention(module, query, key, value, *args, **kwargs)

    ALL_ATTENTION_FUNCTIONS.register(NAME, watch)
    try:
        yield seen
    finally:
        ALL_ATTENTION_FUNCTIONS.register(NAME, attention)


@contextmanager
def _inputs(modules: list[nn.Module]) -> Iterator[list[tuple[Tensor, Any]]]:
    """Within the context: what each module is given, hidden states [B, T, D] and rotary cosines and sines."""
    given: list[tuple[Tensor, Any]] = []

    def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        given.append((hidden.detach(), kwargs["position_embeddings"]))

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(note, with_kwargs=True).remove)
        yield given


def _matrices(module: nn.Module, width: int, rotary: tuple[Tensor, Tensor], like: Tensor) -> list[Tensor]:
    """W_Q [H, d, D], W_K and W_V [H_kv, d, D] of an attention module, read off by giving it unit vectors.

    Each is a sequence of its own at position 0, where the rotary embedding turns nothing; a zero vector shows the bias.
    """
    rows = torch.cat([torch.eye(width), torch.zeros(1, width)]).to(like)[:, None]
    first: Any = tuple(part[:1, :1] for part in rotary)
    with _watched() as seen:
        module(hidden_states=rows, position_embeddings=first, attention_mask=None)
    parts = [part[0][:, :, 0].double() for part in (seen.queries, seen.keys, seen.values)]  # [D + 1, H, d]
    return [(part[:-1] - part[-1:]).permute(1, 2, 0) for part in parts]


def replaced(batch: Batch, count: int, vocabulary: int, generator: torch.Generator) -> Batch:
    """The batch with other tokens of the vocabulary at its last ``count`` places, drawn at random: a RandomToken suffix."""
    tokens = batch.tokens.clone()
    shift = torch.randint(1, vocabulary, (len(batch), count), generator=generator)  # never 0: each token changes
    tokens[:, -count:] = (tokens[:, -count:] + shift.to(tokens.device)) % vocabulary
    return Batch(tokens, batch.mask, batch.labels, batch.padded)


@torch.no_grad()
def real_heads(model: Classifier, clean: Batch, changed: Batch, most: int, generator: torch.Generator) -> Heads:
    """At most ``most`` heads, drawn from all texts, blocks and heads, on an unpadded batch and its changed copy."""
    with _watched() as first:
        model(clean)
    blocks = len(first.modules)
    with _inputs(first.modules) as given, _watched() as seen:
        model(clean)
        model(changed)
    texts, heads = seen.queries[0].shape[:2]
    drawn = torch.randperm(blocks * texts * heads, generator=generator)[:most]
    parts = []
    for block in range(blocks):
        own = drawn[drawn // (texts * heads) == block] % (texts * heads)
        if len(own):
            text, head = (own // heads).to(model.device), (own % heads).to(model.device)
            parts.append(_of_block(seen, given, (block, blocks + block), text, head))
    q, k, v, q2, k2, v2, moved, *norms = [torch.cat(part).double().cpu() for part in zip(*parts, strict=True)]
    return Heads(Run(q, k, v), Run(q2, k2, v2), moved, *norms)


def _of_block(
    seen: _Seen, given: list[tuple[Tensor, Any]], passes: tuple[int, int], text: Tensor, head: Tensor
) -> list[Tensor]:
    """What :class:`Heads` holds, of a block's heads ``head`` [N] on the texts ``text`` [N]; ``passes``: clean, changed."""
    clean, changed = passes
    state, rotary = given[clean]
    group = head // (seen.queries[clean].shape[1] // seen.keys[clean].shape[1])
    found = []
    for at in passes:
        found += [seen.queries[at][text, head, -1], seen.keys[at][text, group], seen.values[at][text, group]]
    found.append((given[changed][0].double() - state.double()).norm(dim=-1)[text])
    matrices = _matrices(seen.modules[clean], state.shape[-1], rotary, state)
    for matrix, which in zip(matrices, (head, group, group), strict=True):
        found.append(torch.linalg.matrix_norm(matrix, ord=2)[which])
    return found
