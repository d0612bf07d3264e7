"""Arms compared on the same examples: the paired bootstrap is what it says, and knows that seeds share examples."""

from __future__ import annotations

from itertools import product

import numpy as np
import pandas as pd
import pytest

from latreft.claims.comparison import compare
from latreft.paired import mcnemar_p, paired_difference


def arm(*seeds: list[int]) -> pd.DataFrame:
    """One list of 0 and 1 a seed."""
    index = pd.Index([f"e{i}" for i in range(len(seeds[0]))], name="id")
    return pd.DataFrame(np.array(seeds, dtype=float).T, index=index, columns=list(range(len(seeds))))


def draw(rate: float, seed: int, n: int = 60) -> pd.DataFrame:
    return arm((np.random.default_rng(seed).random(n) < rate).astype(int).tolist())


def every_resample(columns: list[list[float]]) -> np.ndarray:
    """Rates [arms, n^n] of all samples of n examples with replacement, all arms on the same ones."""
    matrix = np.array(columns)
    return np.stack(
        [matrix[:, list(chosen)].mean(axis=1) for chosen in product(range(matrix.shape[1]), repeat=5)], axis=1
    )


KINDS = {
    "difference": lambda r: r[0] - r[1],
    "over_highest": lambda r: r[0] - np.maximum(r[1], r[2]),
    "over_lowest": lambda r: r[0] - np.minimum(r[1], r[2]),
    "range": lambda r: np.ptp(r, axis=0),
    "highest": lambda r: r.max(axis=0),
    "lowest": lambda r: r.min(axis=0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_interval_is_that_of_all_resamples(kind: str) -> None:
    """All 3125 samples of five examples stand for the bootstrap's draws: its ends must be percentiles of their values."""
    seeds = [[[1, 1, 1, 0, 1], [1, 1, 0, 0, 1]], [[0, 1, 0, 0, 1], [0, 0, 0, 0, 1]], [[0, 0, 1, 0, 0], [1, 0, 1, 0, 0]]]
    seeds = seeds[:2] if kind == "difference" else seeds
    found = compare(kind, [[arm(*one) for one in seeds]])
    columns = [np.mean(one, axis=0).tolist() for one in seeds]
    assert found.estimate == pytest.approx(float(KINDS[kind](np.array(columns).mean(axis=1))))
    every = KINDS[kind](every_resample(columns))
    for end, level in ((found.low, 0.025), (found.high, 0.975)):
        below, up_to = (every < end - 1e-9).mean(), (every < end + 1e-9).mean()
        assert below - 0.005 <= level <= up_to + 0.005, (
            f"{kind}: {below:.3f} to {up_to:.3f} of all samples are below {end}"
        )
    assert (found.n, found.seeds) == (5, 2)


def test_a_difference_is_the_project_s_paired_difference() -> None:
    a, b = draw(0.7, 1), draw(0.4, 2)
    long = [
        frame.reset_index().melt("id", var_name="seed", value_name="outcome").astype({"outcome": bool})
        for frame in (a, b)
    ]
    wanted, found = paired_difference(*long), compare("difference", [[a, b]])
    assert (found.estimate, found.low, found.high) == pytest.approx((wanted.estimate, wanted.low, wanted.high))
    assert found.p == tuple(wanted.p.values()) and found.p[0] == mcnemar_p(a[0].to_numpy(), b[0].to_numpy())


def test_pairing_narrows_the_interval_of_arms_that_agree() -> None:
    """Two arms that fail on the same examples but one differ by that one: unpaired they would differ by chance alone."""
    a = [1] * 50 + [0] * 50
    b = [1] * 49 + [0] * 51
    found = compare("difference", [[arm(a), arm(b)]])
    assert found.high - found.low < 0.05


def test_more_seeds_are_no_more_examples() -> None:
    a, b = [1, 1, 0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 0, 1, 0]
    one, three = compare("difference", [[arm(a), arm(b)]]), compare("difference", [[arm(a, a, a), arm(b, b, b)]])
    assert (one.low, one.high) == (three.low, three.high) and (one.n, three.n) == (8, 8)
    assert three.p == one.p * 3 and len(one.p) == 1


def test_of_several_models_the_one_asked_for_counts() -> None:
    near, far = [draw(0.5, 1), draw(0.4, 2)], [draw(0.9, 3), draw(0.2, 4)]
    gaps = [compare("difference", [pair]).estimate for pair in (near, far)]
    assert compare("difference", [near, far], "smallest").estimate == min(gaps)
    assert compare("difference", [near, far], "largest").estimate == max(gaps)
    assert compare("highest", [near, far]).estimate == compare("highest", [[*near, *far]]).estimate
    assert compare("lowest", [near, far]).estimate == compare("lowest", [[*near, *far]]).estimate


def test_different_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="different examples: e2 is not in all of them"):
        compare("difference", [[arm([1, 0, 1]), arm([1, 0])]])
    with pytest.raises(ValueError, match="two examples or more"):
        compare("range", [[arm([1]), arm([0])]])
