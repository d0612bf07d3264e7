"""Exact parameter counts of decoder-only classifiers, from their shape alone.

A classifier is the decoder without its language-model head, plus a bias-free linear head on the final hidden state
[A.1]. Whether the language model tied its embeddings is therefore of no account: the input embedding counts once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Biases:
    """Which linear layers of a block have a bias."""

    qkv: bool = False
    output: bool = False
    mlp: bool = False


@dataclass(frozen=True)
class Family:
    """What the blocks of a model family have in common.

    ``gated``: the MLP has gate, up and down projections, else one in and one out. ``fused_qkv``: one matrix makes
    queries, keys and values. ``norm_bias``: LayerNorm (weight and bias) instead of RMSNorm (weight only).
    """

    gated: bool
    fused_qkv: bool
    norm_bias: bool
    biases: Biases


FAMILIES = {
    "llama": Family(gated=True, fused_qkv=False, norm_bias=False, biases=Biases()),
    "qwen2": Family(gated=True, fused_qkv=False, norm_bias=False, biases=Biases(qkv=True)),
    "gpt_neox": Family(gated=False, fused_qkv=True, norm_bias=True, biases=Biases(qkv=True, output=True, mlp=True)),
}


@dataclass(frozen=True)
class Linear:
    """A weight matrix of ``outputs`` x ``inputs``, with or without a bias of ``outputs``."""

    outputs: int
    inputs: int
    bias: bool

    @property
    def parameters(self) -> int:
        return self.outputs * (self.inputs + self.bias)

    @property
    def weights(self) -> int:
        """Entries of the matrix: multiplications a token."""
        return self.outputs * self.inputs


@dataclass(frozen=True)
class ModelShape:
    """The shape of one classifier. All counts are exact and in single parameters.

    ``biases`` is the family's own unless given. Raises ``ValueError`` on an unknown family or a size below one.
    """

    family: str
    layers: int
    width: int
    mlp_width: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int
    classes: int = 2
    biases: Biases | None = None

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            known = ", ".join(sorted(FAMILIES))
            raise ValueError(f"unknown model family {self.family!r}; known: {known} (cost/shapes.py: FAMILIES)")
        for name in ("layers", "width", "mlp_width", "heads", "kv_heads", "head_width", "vocabulary", "classes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.biases is None:
            object.__setattr__(self, "biases", FAMILIES[self.family].biases)

    @property
    def attention_linears(self) -> tuple[Linear, ...]:
        """The attention matrices of one block."""
        assert self.biases is not None
        queries, keys = self.heads * self.head_width, self.kv_heads * self.head_width
        sizes = (queries + 2 * keys,) if FAMILIES[self.family].fused_qkv else (queries, keys, keys)
        projections = tuple(Linear(size, self.width, self.biases.qkv) for size in sizes)
        return (*projections, Linear(self.width, queries, self.biases.output))

    @property
    def mlp_linears(self) -> tuple[Linear, ...]:
        """The MLP matrices of one block: those into the neurons first, the one out of them last."""
        assert self.biases is not None
        into = 2 if FAMILIES[self.family].gated else 1
        return (Linear(self.mlp_width, self.width, self.biases.mlp),) * into + (
            Linear(self.width, self.mlp_width, self.biases.mlp),
        )

    @property
    def norm_parameters(self) -> int:
        """One normalisation layer."""
        return self.width * (2 if FAMILIES[self.family].norm_bias else 1)

    @property
    def block_parameters(self) -> int:
        """One decoder block: attention, MLP and two normalisations."""
        return sum(m.parameters for m in self.attention_linears + self.mlp_linears) + 2 * self.norm_parameters

    @property
    def embedding_parameters(self) -> int:
        """The input embedding."""
        return self.vocabulary * self.width

    @property
    def head_parameters(self) -> int:
        """The bias-free classification head [A.1]."""
        return self.classes * self.width

    @property
    def mlp_parameters(self) -> int:
        """The MLPs of all blocks."""
        return self.layers * sum(m.parameters for m in self.mlp_linears)

    @property
    def parameters(self) -> int:
        """The whole classifier: embedding, blocks, final normalisation, head. ``N`` of [App. E]."""
        blocks = self.layers * self.block_parameters
        return self.embedding_parameters + blocks + self.norm_parameters + self.head_parameters

    @property
    def mlp_share(self) -> float:
        """Share of all parameters that lie in MLPs: ``f_MLP`` of [App. E]."""
        return self.mlp_parameters / self.parameters

    def parameters_per_neuron(self, layer: int = 1) -> int:
        """Parameters that go with one MLP neuron of ``layer`` (from 1): its rows in, their biases, its column out."""
        if not 1 <= layer <= self.layers:
            raise ValueError(f"layer {layer} does not exist; layers are 1 to {self.layers}")
        *into, out = self.mlp_linears
        return sum(m.inputs + m.bias for m in into) + out.outputs

    def pruned(self, kept_per_layer: Sequence[int]) -> int:
        """Parameters left when layer ``l`` keeps ``kept_per_layer[l - 1]`` MLP neurons [4.2]; none is allowed.

        The bias of the projection out of the MLP stays even where no neuron does. Raises ``ValueError`` unless there
        is one count a layer, each within 0 to ``mlp_width``.
        """
        if len(kept_per_layer) != self.layers:
            raise ValueError(f"{len(kept_per_layer)} layers of kept neurons were given; the model has {self.layers}")
        for layer, kept in enumerate(kept_per_layer, start=1):
            if not 0 <= kept <= self.mlp_width:
                raise ValueError(f"layer {layer} keeps {kept} neurons; it has {self.mlp_width}")
        removed = self.layers * self.mlp_width - sum(int(kept) for kept in kept_per_layer)
        return self.parameters - removed * self.parameters_per_neuron()

    def kept_share(self, surrogate_parameters: int) -> float:
        """Share of MLP neurons that a surrogate of ``surrogate_parameters`` parameters has kept, over all layers.

        Raises ``ValueError`` if no pruning of MLP neurons gives that count.
        """
        neurons = self.layers * self.mlp_width * self.parameters_per_neuron()
        if not self.parameters - neurons <= surrogate_parameters <= self.parameters:
            raise ValueError(
                f"a surrogate of {surrogate_parameters:,} parameters cannot be cut from this model: "
                f"{self.parameters - neurons:,} (no neuron left) to {self.parameters:,} (none cut) are possible"
            )
        return 1 - (self.parameters - surrogate_parameters) / neurons

    def reft_parameters(self, rank: int) -> int:
        """One LoReFT edit, ``R`` and ``W`` of ``rank`` x D and ``b`` of ``rank`` [3]: 2·rank·D + rank."""
        return 2 * rank * self.width + rank

    def lora_parameters(self, rank: int) -> int:
        """LoRA factors of ``rank`` on every linear layer of every block, without the head."""
        return self.layers * sum(rank * (m.outputs + m.inputs) for m in self.attention_linears + self.mlp_linears)


def _read(config: Any, name: str) -> Any:
    try:
        return getattr(config, name)
    except AttributeError:
        raise ValueError(f"{type(config).__name__} has no '{name}': not the config of a decoder-only model") from None


def _biases(config: Any, family: Family) -> Biases:
    """The family's biases, changed where the config says so; Qwen2 has no such switches."""
    attention, mlp = getattr(config, "attention_bias", None), getattr(config, "mlp_bias", None)
    own = family.biases
    return Biases(
        qkv=own.qkv if attention is None else attention,
        output=own.output if attention is None else attention,
        mlp=own.mlp if mlp is None else mlp,
    )


def from_config(config: Any) -> ModelShape:
    """The shape that a ``transformers`` config describes, read by attribute; the LM head is left out.

    Raises ``ValueError`` on an unknown ``model_type`` or a missing attribute.
    """
    family, heads = _read(config, "model_type"), _read(config, "num_attention_heads")
    known, width = FAMILIES.get(family), _read(config, "hidden_size")
    return ModelShape(
        family=family,
        layers=_read(config, "num_hidden_layers"),
        width=width,
        mlp_width=_read(config, "intermediate_size"),
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_width=getattr(config, "head_dim", None) or width // heads,
        vocabulary=_read(config, "vocab_size"),
        classes=getattr(config, "num_labels", 2),
        biases=_biases(config, known) if known else None,
    )


PUBLIC_SHAPES = {
    "Llama-3.1-8B": ModelShape("llama", 32, 4096, 14336, heads=32, kv_heads=8, head_width=128, vocabulary=128256),
    "Qwen2.5-3B": ModelShape("qwen2", 36, 2048, 11008, heads=16, kv_heads=2, head_width=128, vocabulary=151936),
    "Pythia-1.4B": ModelShape("gpt_neox", 24, 2048, 8192, heads=16, kv_heads=16, head_width=128, vocabulary=50304),
    "SmolLM2-135M": ModelShape("llama", 30, 576, 1536, heads=9, kv_heads=3, head_width=64, vocabulary=49152),
}
"""Shapes of the paper's models [6.1] and of the small scale's, as published with the weights."""
