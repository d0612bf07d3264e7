"""Two arms on the same examples: the estimate, an interval over examples, and McNemar's test."""

from __future__ import annotations

from math import comb

import numpy as np
import pandas as pd
import pytest
from scipy.stats import bootstrap

from latreft.paired import RESAMPLES, SEED, bootstrap_interval, mcnemar_p, paired_difference


def outcomes(*rows: list[int], seeds: tuple[int, ...] | None = None) -> pd.DataFrame:
    """One list of 0 and 1 a seed."""
    numbers = seeds or tuple(range(len(rows)))
    return pd.concat(
        [
            pd.DataFrame({"id": [f"e{i}" for i in range(len(row))], "seed": seed, "outcome": np.array(row, bool)})
            for seed, row in zip(numbers, rows, strict=True)
        ],
        ignore_index=True,
    )


def test_the_estimate_is_the_difference_of_the_rates() -> None:
    found = paired_difference(outcomes([1, 1, 1, 0]), outcomes([1, 0, 0, 0]))
    assert (found.estimate, found.n, found.seeds) == (0.5, 4, (0,))
    assert found.low <= 0.5 <= found.high


def test_the_interval_is_the_paired_bootstrap_of_scipy() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random(60).round(1), rng.random(60).round(1)
    wanted = bootstrap(
        (a, b),
        lambda x, y, axis: (x - y).mean(axis=axis),
        paired=True, n_resamples=RESAMPLES, method="percentile", rng=np.random.default_rng(SEED),
    ).confidence_interval  # fmt: skip
    assert bootstrap_interval([a - b], np.mean) == pytest.approx((wanted.low, wanted.high))


def test_more_seeds_are_no_more_examples() -> None:
    """Three equal seeds say what one of them says: the interval must not shrink."""
    a, b = [1, 1, 0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 1, 0]
    one, three = paired_difference(outcomes(a), outcomes(b)), paired_difference(outcomes(a, a, a), outcomes(b, b, b))
    assert (one.estimate, one.low, one.high, one.n) == (three.estimate, three.low, three.high, three.n)
    assert three.p == {0: one.p[0], 1: one.p[0], 2: one.p[0]}


def test_seeds_are_averaged_within_an_example() -> None:
    found = paired_difference(outcomes([1, 0], [1, 1]), outcomes([0, 0], [0, 0]))
    assert found.estimate == 0.75 and (found.low, found.high) == (0.5, 1.0)


def test_neither_the_order_of_rows_nor_the_batch_changes_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    a, b = outcomes(*rng.integers(0, 2, (2, 50)).tolist()), outcomes(*rng.integers(0, 2, (2, 50)).tolist())
    found = paired_difference(a, b)
    assert paired_difference(a.sample(frac=1, random_state=1), b.sample(frac=1, random_state=2)) == found
    categories = pd.CategoricalDtype(list(rng.permutation(a["id"].unique())))
    assert paired_difference(a.astype({"id": categories}), b.astype({"id": categories})) == found
    monkeypatch.setattr("latreft.paired.DRAWN_AT_ONCE", 700)
    assert paired_difference(a, b) == found


def test_only_seeds_of_both_arms_count() -> None:
    a, b = outcomes([1, 1], [0, 0], seeds=(0, 1)), outcomes([0, 0], [0, 0], seeds=(0, 2))
    assert paired_difference(a, b).seeds == (0,) and paired_difference(a, b).estimate == 1.0


def test_the_sign_turns_with_the_arms() -> None:
    a, b = outcomes([1, 1, 0, 1]), outcomes([0, 1, 0, 0])
    there, back = paired_difference(a, b), paired_difference(b, a)
    assert there.estimate == -back.estimate and there.p == back.p


def test_equal_arms_differ_by_nothing() -> None:
    found = paired_difference(outcomes([1, 0, 1]), outcomes([1, 0, 1]))
    assert (found.estimate, found.low, found.high, found.p) == (0.0, 0.0, 0.0, {0: 1.0})


@pytest.mark.parametrize(("first", "second"), [(5, 1), (0, 6), (3, 3), (12, 2)])
def test_mcnemar_is_the_exact_binomial_test_of_the_examples_that_differ(first: int, second: int) -> None:
    a = np.array([1] * first + [0] * second + [1, 0, 1])
    b = np.array([0] * first + [1] * second + [1, 0, 1])
    n, k = first + second, min(first, second)
    assert mcnemar_p(a, b) == pytest.approx(min(1.0, 2 * sum(comb(n, i) for i in range(k + 1)) / 2**n))


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (outcomes([1, 0]), outcomes([1, 0], seeds=(5,)), "share no seed"),
        (outcomes([1, 0, 1]), outcomes([1, 0]), "e2 is not in all of them"),
        (outcomes([1, 0, 1], [1, 0]), outcomes([1, 0, 1], [1, 0, 1]), "e2 has no outcome"),
        (pd.concat([outcomes([1, 0])] * 2), outcomes([1, 0]), "e0 is twice"),
        (outcomes([1]), outcomes([1]), "two examples or more"),
    ],
)
def test_outcomes_that_are_no_pairs_are_refused(a: pd.DataFrame, b: pd.DataFrame, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        paired_difference(a, b)
