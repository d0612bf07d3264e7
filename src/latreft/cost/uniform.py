"""One rule for every method alike: a training step is a list of passes, and a pass costs what it multiplies.

A weight that multiplies a token costs 2 FLOPs forward; 2 backward if the gradient with respect to activations crosses
its block; 2 more if it is trained. Only matrices of the blocks and of adapters count: an embedding is a look-up, the
head reads one position. Left out besides: attention scores (at 512 tokens 2% of a Llama-3.1-8B block's forward pass,
4% of a Pythia-1.4B block's), normalisations and rotations. Every pass runs over the whole sequence; what prefix reuse
saves shows in the measured ledger. In every method alike: PGD passes ask for the gradient of the perturbation alone;
the clean and the adversarial loss of the outer update have a forward and a backward pass each; the clean hidden states
come with the clean loss.

A gradient that stops at layer ``l`` (from 1; 0 is the embedding) crosses the ``layers - l`` blocks above it.
All functions return the passes of one training example of ``tokens`` tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from latreft.cost.shapes import ModelShape


@dataclass(frozen=True)
class Pass:
    """One pass over ``tokens`` tokens, with the parameters that multiply forward, that the gradient crosses backward
    (those above the lowest point where it is needed), and that are given a gradient themselves."""

    tokens: float
    forward_parameters: float
    backward_parameters: float = 0
    weight_gradient_parameters: float = 0

    @property
    def flops(self) -> float:
        """2 FLOPs a token for each of the three."""
        multiplied = self.forward_parameters + self.backward_parameters + self.weight_gradient_parameters
        return 2 * self.tokens * multiplied


def total(passes: Iterable[Pass]) -> float:
    """FLOPs of all passes."""
    return sum(one.flops for one in passes)


def blocks(shape: ModelShape, above: int = 0, kept_share: float = 1.0) -> float:
    """Matrix weights of the blocks above layer ``above``, with ``kept_share`` of the MLP neurons in each of them.

    Raises ``ValueError`` if there is no such layer or share.
    """
    if not 0 <= above <= shape.layers:
        raise ValueError(f"layer {above} does not exist; layers are 0 (the embedding) to {shape.layers}")
    if not 0 <= kept_share <= 1:
        raise ValueError(f"kept_share is {kept_share}; it must lie within 0 and 1")
    attention = sum(matrix.weights for matrix in shape.attention_linears)
    mlp = sum(matrix.weights for matrix in shape.mlp_linears)
    return (shape.layers - above) * (attention + kept_share * mlp)


def finetune(shape: ModelShape, *, tokens: float) -> list[Pass]:
    """Clean fine-tuning of all weights [A.1]."""
    everything = blocks(shape)
    return [Pass(tokens, everything, everything, everything)]


def lat(shape: ModelShape, *, tokens: float, attack_layer: int, steps: int) -> list[Pass]:
    """LAT on all weights [A.4]: K steps on the layer's perturbation, then clean and adversarial update."""
    inner = Pass(tokens, blocks(shape), blocks(shape, above=attack_layer))
    return [inner] * steps + finetune(shape, tokens=tokens) * 2


def cat(shape: ModelShape, *, tokens: float, steps: int, lora_parameters: float) -> list[Pass]:
    """CAT [A.4]: K steps on the embeddings, then clean and adversarial update of the LoRA factors.

    The factors lie in all blocks, so the gradient crosses all of them; the first block is charged whole.
    """
    adapted = blocks(shape) + lora_parameters
    inner = Pass(tokens, adapted, adapted)
    outer = Pass(tokens, adapted, adapted, lora_parameters)
    return [inner] * steps + [outer] * 2


def lat_reft(
    shape: ModelShape,
    *,
    tokens: float,
    attack_layer: int,
    reft_layer: int,
    steps: int,
    trainable: float,
    kept_share: float = 1.0,
) -> list[Pass]:
    """LAT-ReFT [Algorithm 1]: K steps on a surrogate with ``kept_share`` of the neurons, then clean and adversarial
    update of the edit on the full model.

    The cut is taken to be spread evenly over layers: exact for the forward pass, near for the part backward. The
    edit's ``trainable`` weights are charged on every token, though they touch the window only: a bound that adds
    less than one part in a thousand.
    """
    crossed = trainable if reft_layer >= attack_layer else 0
    inner = Pass(
        tokens,
        blocks(shape, kept_share=kept_share) + trainable,
        blocks(shape, above=attack_layer, kept_share=kept_share) + crossed,
    )
    outer = Pass(tokens, blocks(shape) + trainable, blocks(shape, above=reft_layer), trainable)
    return [inner] * steps + [outer] * 2


def gcg_round(shape: ModelShape, *, tokens: float, candidates: int) -> list[Pass]:
    """One GCG round on one example [A.5]: the gradient down to the embeddings, then every candidate forward."""
    everything = blocks(shape)
    return [Pass(tokens, everything, everything), Pass(tokens * candidates, everything)]


def r2d2(shape: ModelShape, *, tokens: float, searched: float, trained: float, candidates: int) -> list[Pass]:
    """R2D2 [A.4]: one fine-tuning pass, and the search of the whole run spread over its training examples.

    ``searched`` is GCG rounds over all attacked examples, ``trained`` is examples seen in training. A
    training example is clean or adversarial, not both. Raises ``ValueError`` if nothing is trained.
    """
    if trained <= 0:
        raise ValueError(f"trained is {trained}; the search cannot be spread over no training examples")
    search = gcg_round(shape, tokens=tokens * searched / trained, candidates=candidates)
    return search + finetune(shape, tokens=tokens)
