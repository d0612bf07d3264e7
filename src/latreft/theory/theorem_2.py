"""Theorem 2: a shared edit of a window bounds the change of the attention output.

[thm:seq_shared_defense, Eq. 6] With ‖Φ(h̃_t) − h_t‖ ≤ ε for all t of the window (L tokens), ‖v̂_t‖ ≤ M_V, and k attacked
tokens, all in the window: ``‖ô_T − o_T‖ ≤ ε (B_V + M_V L_α (B_Q + k B_K))``.

Assumption 1 gives L_α as a Lipschitz constant of the states → o_T; the proof uses it as one of (query, keys) → attention
weights. Both readings are checked. The hypothesis lets Φ move all L tokens, the bound counts k.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from latreft.records import Metric
from latreft.theory.bounds import count, median_ratio, share, violations
from latreft.theory.heads import TOKENS, Heads, RandomHeads, last, random_change, random_heads

WINDOW, ATTACKED, PAPER_WINDOW = 12, 4, 20
LEFT = 0.1
"""Share of a real change that is left, as if the edit had undone the rest."""


def bound(heads: Heads, attacked: int, constant: Tensor) -> Tensor:
    """The right side [N] with L_α = ``constant`` [N]; ε is how far the token that moved most has moved."""
    keys = heads.query_norm + attacked * heads.key_norm
    return heads.moved.amax(dim=-1) * (heads.value_norm + heads.changed.largest_value() * constant * keys)


def state_constant(heads: RandomHeads, change: Tensor, points: int = 5) -> Tensor:
    """Assumption 1 to the letter [N]: the largest ‖∂o_T/∂(h_1 … h_T)‖ on the line from clean to changed states."""

    def output(hidden: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        one = RandomHeads(hidden[None], query[None], key[None], value[None])
        return one.run(hidden[None]).output()[0]

    largest = torch.zeros(len(change), dtype=change.dtype)
    for at in torch.linspace(0, 1, points).tolist():
        states = heads.hidden + at * change
        jacobian = vmap(jacrev(output))(states, heads.query, heads.key, heads.value).flatten(start_dim=2)
        largest = torch.maximum(largest, torch.linalg.matrix_norm(jacobian, ord=2))
    return largest


def counterexample(value: float = 1.0) -> tuple[RandomHeads, Tensor]:
    """A head and a change of its states, of which one token is attacked (k = 1), that break the bound.

    The state has three coordinates: what the query, the keys and the values read; ``value`` is W_V. Attention is flat. Φ
    moves each key of the window by ε, as the hypothesis allows, so that the window as a whole gains weight.
    """
    tokens, size = 40, 100.0
    eye, window = torch.eye(3, dtype=torch.float64)[None], last(tokens, PAPER_WINDOW)
    states = torch.zeros(1, tokens, 3, dtype=torch.float64)
    states[0, :, 0] = size
    states[0, :, 2] = torch.where(window, size, -size)
    change = torch.zeros_like(states)
    change[0, window, 1] = 1e-4
    return RandomHeads(states, eye[:, :1], eye[:, 1:2], value * eye[:, 2:]), change


def counterexamples() -> dict[str, Metric]:
    """Measured over bound: above 1 the statement, read so, is false.

    ``window``: with L in place of k. ``assumption_1``: with L in place of k, and L_α to the letter of Assumption 1; a small
    W_V breaks it, for there both factors of M_V L_α shrink with W_V, and what they bound shrinks with one of them.
    """
    heads, change = counterexample()
    both = heads.heads(change)
    small, small_change = counterexample(1e-6)
    little = small.heads(small_change)
    cases = {
        "thm2_counterexample": (both, bound(both, 1, both.weight_constant())),
        "thm2_counterexample_window": (both, bound(both, PAPER_WINDOW, both.weight_constant())),
        "thm2_counterexample_assumption_1": (
            little,
            bound(little, PAPER_WINDOW, state_constant(small, small_change)),
        ),
    }
    return {
        name: Metric(value=(each.output_change() / limit).item(), unit="ratio") for name, (each, limit) in cases.items()
    }


def _only(heads: RandomHeads, change: Tensor, attacked: int) -> Heads:
    """The change at the attacked tokens alone: Φ leaves clean tokens as they are."""
    return heads.heads(change * last(change.shape[1], attacked)[:, None])


def check(
    trials: int, generator: torch.Generator, real: Heads, real_attacked: int, factor: float = 1.0
) -> dict[str, Metric]:
    """The bound on random heads, and on real ones where a tenth of the change is left. ``factor`` multiplies the bound."""
    heads = random_heads(trials, generator)
    change = random_change(heads, last(TOKENS, WINDOW), generator)
    whole, alone = heads.heads(change), _only(heads, change, ATTACKED)
    partly = real.undone(torch.full((real.moved.shape[1],), LEFT, dtype=torch.float64))
    pairs = {
        "whole": (whole, bound(whole, ATTACKED, whole.weight_constant())),
        "alone": (alone, bound(alone, ATTACKED, alone.weight_constant())),
        "real": (partly, bound(partly, real_attacked, partly.weight_constant())),
    }
    broken = {name: violations(each.output_change(), factor * limit) for name, (each, limit) in pairs.items()}
    literal = factor * bound(whole, ATTACKED, state_constant(heads, change))
    _, on_real = pairs["real"]
    most = partly.clean.largest_value() + partly.changed.largest_value()
    return {
        "thm2_violations": count(sum(broken.values()), 2 * trials + len(on_real)),
        "thm2_violations_assumption_1": count(violations(whole.output_change(), literal), trials),
        "thm2_slack_median": median_ratio(on_real, partly.output_change()),
        "thm2_slack_median_random": median_ratio(pairs["whole"][1], whole.output_change()),
        "thm2_vacuous_share": share(on_real >= most),
    } | counterexamples()
