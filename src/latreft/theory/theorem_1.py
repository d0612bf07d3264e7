"""Theorem 1: where only the last token is defended, the other attacked tokens still reach its attention output.

[thm:causal_bypass, Eq. 5; D.2] With ‖ĥ_T − h_T‖ ≤ ε_T and ĥ_t = h_t + Δ_t at the other attacked tokens,
``‖ô_T − o_T‖ ≥ ‖Σ_{t<T} α_t W_V Δ_t‖ − E_attn − E_T`` with E_attn = Σ_t |α̂_t − α_t| ‖v̂_t‖, E_T = α_T ‖W_V‖ ε_T, and
``E_attn ≤ M_V L_α [(‖W_Q‖ + ‖W_K‖) ε_T + ‖W_K‖ Σ_{t<T} ‖Δ_t‖]``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from latreft.records import Metric
from latreft.theory.bounds import count, median_ratio, share, violations
from latreft.theory.heads import TOKENS, Heads, last, random_change, random_heads


@dataclass(frozen=True)
class Terms:
    """The terms of the theorem, [N] each; ``attention_limit`` is D.2's bound of E_attn."""

    measured: Tensor
    leak: Tensor
    attention: Tensor
    attention_limit: Tensor
    last_token: Tensor

    def bound(self, attention: Tensor, factor: float = 1.0) -> Tensor:
        """The theorem's lower bound, with ``factor`` times the error terms that it subtracts."""
        return self.leak - factor * (attention + self.last_token)


def terms(heads: Heads) -> Terms:
    """The terms for heads that were changed at some last tokens; ε_T is how far the last one moved."""
    weights, change = heads.clean.weights(), heads.changed.values - heads.clean.values
    before = torch.einsum("nt,ntd->nd", weights[:, :-1], change[:, :-1])
    at_last, others = heads.moved[:, -1], heads.moved[:, :-1].sum(dim=-1)
    spread = (heads.query_norm + heads.key_norm) * at_last + heads.key_norm * others
    return Terms(
        measured=heads.output_change(),
        leak=before.norm(dim=-1),
        attention=(heads.weight_change() * heads.changed.values.norm(dim=-1)).sum(dim=-1),
        attention_limit=heads.changed.largest_value() * heads.weight_constant() * spread,
        last_token=weights[:, -1] * heads.value_norm * at_last,
    )


def random_trials(trials: int, generator: torch.Generator, attacked: int = 6) -> Heads:
    """Random heads whose last ``attacked`` tokens moved."""
    heads = random_heads(trials, generator)
    return heads.heads(random_change(heads, last(TOKENS, attacked), generator))


def with_last_token_restored(heads: Heads) -> Heads:
    """The same change, undone at the last token: the best that a defense of the last token can do, ε_T = 0."""
    kept = torch.ones(heads.moved.shape[1], dtype=torch.float64)
    kept[-1] = 0
    return heads.undone(kept)


def check(random: Heads, real: Heads, factor: float = 1.0) -> dict[str, Metric]:
    """The bound on random heads, and on real ones whose last token is restored perfectly.

    ``factor`` multiplies the error terms; below 1 it makes the bound wrong.
    """
    restored = with_last_token_restored(real)
    found = {"random": terms(random), "real": terms(restored)}
    broken = {name: violations(each.bound(each.attention, factor), each.measured) for name, each in found.items()}
    limit = {name: violations(each.attention, factor * each.attention_limit) for name, each in found.items()}
    trials = {name: each.measured.numel() for name, each in found.items()}
    on_real, on_random = found["real"], found["random"]
    return {
        "thm1_violations": count(sum(broken.values()), sum(trials.values())),
        "thm1_attention_violations": count(sum(limit.values()), sum(trials.values())),
        "thm1_vacuous_share": share(on_real.bound(on_real.attention) <= 0),
        "thm1_vacuous_share_random": share(on_random.bound(on_random.attention) <= 0),
        "thm1_vacuous_share_by_constant": share(on_real.bound(on_real.attention_limit) <= 0),
        "thm1_error_over_leak": median_ratio(on_real.attention + on_real.last_token, on_real.leak),
        "thm1_leak_share": median_ratio(on_real.measured, real.output_change()),
    }
