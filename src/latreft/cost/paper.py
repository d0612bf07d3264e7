"""Appendix E as printed: FLOPs of one training step per normalised 512-token example, a function a method.

Every function takes plain numbers, ``parameters`` being the dense count ``N``, and returns FLOPs; Table 1's TFLOPs are
these over 1e12. The formulas are kept as they stand, contradictions included; each docstring says where. What a
common rule gives is in ``uniform``.
"""

from __future__ import annotations

NORMAL_TOKENS = 512
"""Tokens of the normalised example of Table 1."""


def forward(parameters: float, tokens: float = NORMAL_TOKENS) -> float:
    """A forward pass: 2NT [App. E]."""
    return 2 * parameters * tokens


def input_gradient(parameters: float, tokens: float = NORMAL_TOKENS) -> float:
    """A backward pass to the input only, without its forward: 2NT [App. E]."""
    return 2 * parameters * tokens


def forward_backward(parameters: float, tokens: float = NORMAL_TOKENS) -> float:
    """A forward pass and a backward pass with weight gradients: 6NT [App. E]."""
    return 6 * parameters * tokens


def gcg_round(parameters: float, candidates: int = 128, tokens: float = NORMAL_TOKENS) -> float:
    """One GCG round on one example [A.5]: the gradient, then a forward pass of each candidate."""
    gradient = forward(parameters, tokens) + input_gradient(parameters, tokens)
    return gradient + candidates * forward(parameters, tokens)


def random_token_attack(parameters: float, draws: int = 500, tokens: float = NORMAL_TOKENS) -> float:
    """RandomToken on one example that never flips [A.5]: one forward pass a draw."""
    return draws * forward(parameters, tokens)


def finetune(parameters: float, tokens: float = NORMAL_TOKENS) -> float:
    """Clean fine-tuning of all weights: 6NT [App. E]."""
    return forward_backward(parameters, tokens)


def lat(parameters: float, steps: int, tokens: float = NORMAL_TOKENS) -> float:
    """LAT: (2 n_fwd + 4 n_bwd) NT [App. E]; ``steps`` is K.

    The passes are not printed. n_fwd = K + 3 and n_bwd = K + 1, 11 and 9 for K = 8, give the 58 NT behind all three
    LAT values of Table 1. The formula charges 4NT for every backward pass, those of PGD too, although
    the appendix puts a backward pass to the input at 2NT and charges CAT and LAT-ReFT so.
    """
    forward_passes, backward_passes = steps + 3, steps + 1
    return (2 * forward_passes + 4 * backward_passes) * parameters * tokens


def cat(parameters: float, lora_parameters: float, steps: int, tokens: float = NORMAL_TOKENS) -> float:
    """CAT: 4KNT + (6 + 2p) NT with p the LoRA share of ``parameters`` [App. E]; ``steps`` is K.

    The outer term is one forward and backward pass, although the objective has a clean and an adversarial loss [A.4],
    which the formula for LAT-ReFT does charge.
    """
    share = lora_parameters / parameters
    return (4 * steps + 6 + 2 * share) * parameters * tokens


def share_above(layer: int, layers: int) -> float:
    """rho = (L_all - l - 1) / L_all, the share of the model that a backward pass to layer ``l`` crosses [App. E].

    L_all - l - 1 blocks lie above layer l only if layers are counted from 0; from 1, as in this library, there is one
    more. Kept as printed, except that the last layer's -1 is taken as 0. Raises ``ValueError`` if there is no such
    layer.
    """
    if not 0 <= layer <= layers:
        raise ValueError(f"layer {layer} does not exist; layers are 0 (the embedding) to {layers}")
    return max(layers - layer - 1, 0) / layers


def estimated_surrogate(parameters: float, mlp_share: float, pruning_ratio: float) -> float:
    """N_s = N (1 - f_MLP r_p), for want of an exact count [App. E]. Raises ``ValueError`` outside 0 to 1."""
    if not 0 <= pruning_ratio <= 1:
        raise ValueError(f"pruning_ratio is {pruning_ratio}; it must lie within 0 and 1")
    return parameters * (1 - mlp_share * pruning_ratio)


def lat_reft(
    parameters: float,
    surrogate_parameters: float,
    trainable: float,
    *,
    layers: int,
    attack_layer: int,
    reft_layer: int,
    steps: int,
    tokens: float = NORMAL_TOKENS,
) -> float:
    """LAT-ReFT: 4NT + 4 rho_r NT + 4 N_tr T on the target, 2K(1 + rho_a) N_s T on the surrogate [App. E].

    ``trainable`` is N_tr, ``steps`` is K. Table 1's Llama value is what this gives without pruning, its Pythia value is
    near what it gives with N_s in place of N in the target term; Qwen's alone follows from the stated settings.
    """
    target = 4 * parameters + 4 * share_above(reft_layer, layers) * parameters + 4 * trainable
    surrogate = 2 * steps * (1 + share_above(attack_layer, layers)) * surrogate_parameters
    return (target + surrogate) * tokens


def gcg_rounds(round_number: int, start: int = 8, end: int = 32, r_max: int = 8) -> int:
    """GCG rounds in round ``round_number`` (from 1) of R2D2: round(start + r / R_max · (end - start)) [A.4]."""
    return round(start + round_number / r_max * (end - start))


def r2d2(
    parameters: float,
    *,
    searched: float,
    trained: float,
    candidates: int = 128,
    tokens: float = NORMAL_TOKENS,
) -> float:
    """R2D2: (C_train + C_search) / (D_train / 512), C_train = 6 N D_train, C_search = (2 n_fwd + 2 n_bwd) N D_search
    [App. E].

    ``searched`` is GCG rounds over all attacked examples, ``trained`` is examples seen in training, both of the whole
    run. A GCG round has n_fwd = candidates + 1 and n_bwd = 1. A.4 says C = 6ND for search and training alike.
    Neither gives Table 1 from the stated settings without a stop of the search that is not described. Raises
    ``ValueError`` if nothing is trained.
    """
    if trained <= 0:
        raise ValueError(f"trained is {trained}; the search cannot be spread over no training examples")
    train = 6 * parameters * trained * tokens
    search = (2 * (candidates + 1) + 2) * parameters * searched * tokens
    return (train + search) / trained
