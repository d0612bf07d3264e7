"""Tiny classifiers of every family, and random examples for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch import Tensor

from latreft.files import read_json, sha256, write_json
from latreft.models.batch import Example
from latreft.models.classifier import Classifier
from latreft.models.families import family

torch.set_num_threads(1)

FAMILIES = ("llama", "qwen2", "gpt_neox")
WIDTH, NEURONS, LAYERS, VOCABULARY = 16, 24, 3, 40


def classifier(
    name: str = "llama",
    *,
    dtype: torch.dtype = torch.float64,
    layers: int = LAYERS,
    seed: int = 0,
    head: float = 30.0,
    vocabulary: int = VOCABULARY,
) -> Classifier:
    """A random classifier, frozen and in evaluation mode; biases and norms are random too, so that none can be lost."""
    kind = family(name)
    extra = {} if name == "gpt_neox" else {"num_key_value_heads": 1}
    config = kind.config(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=NEURONS,
        max_position_embeddings=256,
        initializer_range=0.3,
        **extra,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Classifier(kind.build(config), kind).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # not model.to: the rotary frequencies stay as they are, as in a load
                parameter.data = parameter.data.to(dtype)
                if parameter.ndim == 1:
                    parameter.add_(0.1 * torch.randn_like(parameter))
        model.initialise_head(seed)
        with torch.no_grad():
            model.head.weight.mul_(head)
    return model.requires_grad_(False)


def examples(lengths: Sequence[int], seed: int = 0, first: int = 3) -> list[Example]:
    """Random examples of the given lengths with alternating labels; ids below ``first`` are not drawn."""
    generator = torch.Generator().manual_seed(seed)
    return [
        Example(f"x{i}", tuple(torch.randint(first, VOCABULARY, (length,), generator=generator).tolist()), i % 2)
        for i, length in enumerate(lengths)
    ]


@contextmanager
def silenced(model: Classifier, kept: Sequence[Tensor], window: int = 10**9) -> Iterator[None]:
    """Within the context the MLP neurons of block l not in ``kept[l]`` are zero at the last ``window`` positions."""

    def hook_of(keep: Tensor):
        def hook(_module, inputs):
            last = torch.arange(inputs[0].shape[1])[:, None] >= inputs[0].shape[1] - window
            return (torch.where(last, inputs[0] * keep, inputs[0]),)

        return hook

    with ExitStack() as stack:
        for block, neurons in zip(model.family.block_list(model.base), kept, strict=True):
            keep = torch.zeros(NEURONS, dtype=model.dtype)
            keep[neurons] = 1
            _, output = model.family.neuron_layers(block)
            stack.callback(output.register_forward_pre_hook(hook_of(keep)).remove)
        yield


def relist(manifest: Path) -> None:
    """Have a manifest list its files as they are now: what a job of other code could have written."""
    content = read_json(manifest)
    content["files"] = {name: sha256(manifest.parent / name) for name in content["files"]}
    write_json(manifest, content)


def damage(path: Path) -> None:
    """Change one byte in the middle of a file: length and layout stay."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
