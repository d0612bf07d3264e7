"""What differs from what was published is named by file and by its first line or key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from latreft.published.compare import Difference, compare, unlike

SETTINGS = {"arms": {"imdb/m/lat": {"settings": {"epsilon": 0.5, "steps": 8}, "seeds": [0, 1]}}, "classifiers": {}}


def test_text_must_be_equal_and_pictures_are_reported() -> None:
    grave = ("records.csv", "tables/a.md", "tables/a.tex", "config/settings.json", "README.md", "config")
    assert all(Difference(name, "differs").grave for name in grave)
    assert not any(Difference(name, "differs").grave for name in ("figures/a.png", "figures/a.pdf"))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("a\nb,1.5\nc\n", "a\nb,2.5\nc\n", "differs in line 2: 'b,1.5' is published, 'b,2.5' redrawn"),
        ("a\n", "a\nb\n", "differs in line 2: '' is published, 'b' redrawn"),
        ("a\n", "a\n\n", "differs in line 3: the published file ends before it"),
        ("a\nb", "a", "differs in line 2: the redrawn file ends before it"),
        ("a\r\n", "a\n", "differs in line 1: 'a\\r' is published, 'a' redrawn"),
    ],
)
def test_the_first_line_that_differs_is_shown(old: str, new: str, why: str) -> None:
    assert unlike(".csv", old.encode(), new.encode()) == why
    assert unlike(".csv", old.encode(), old.encode()) is None


def test_of_a_long_line_the_place_is_shown() -> None:
    old, new = f"{'x' * 400}1{'y' * 400}", f"{'x' * 400}2{'y' * 400}"
    why = unlike(".md", old.encode(), new.encode())
    assert why is not None and "x1y" in why and "x2y" in why and len(why) < 200


def changed(*keys: str, value: object) -> bytes:
    content = json.loads(json.dumps(SETTINGS))
    place = content
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return json.dumps(content).encode()


def test_settings_are_compared_by_their_content() -> None:
    packed = json.dumps(SETTINGS, separators=(",", ":")).encode()
    assert unlike(".json", json.dumps(SETTINGS, indent=2, sort_keys=True).encode(), packed) is None


@pytest.mark.parametrize(
    ("old", "why"),
    [
        (
            changed("arms", "imdb/m/lat", "settings", "epsilon", value=0.25),
            "differs in arms > imdb/m/lat > settings > epsilon: '0.25' is published, '0.5' redrawn",
        ),
        (
            changed("arms", "imdb/m/lat", "seeds", value=[0]),
            "differs in arms > imdb/m/lat > seeds: '[0]' is published, '[0, 1]' redrawn",
        ),
        (changed("more", value={}), "differs in more: published, but not redrawn"),
        (changed("arms", value={}), "differs in arms > imdb/m/lat: redrawn, but not published"),
        (b"[]", "differs: '[]' is published, "),
        (b"{", "is not valid JSON"),
    ],
)
def test_the_first_key_that_differs_is_shown(old: bytes, why: str) -> None:
    assert (unlike(".json", old, json.dumps(SETTINGS).encode()) or "").startswith(why)


def test_every_published_or_redrawn_file_is_compared(tmp_path: Path) -> None:
    published, copy = tmp_path / "published" / "s", tmp_path / "copy"
    made = {
        "records.csv": "results/s/records.csv",
        "seconds.csv": "published/s/seconds.csv",
        "README.md": "published/s/README.md",
        "config/settings.json": "published/s/config/settings.json",
        "tables/a.csv": "results/s/tables/a.csv",
        "figures/a.png": "figures/s/a.png",
    }
    for name, place in made.items():
        for path in (published / name, copy / place):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("{}")
    (published / "notes.txt").write_text("of a reader")
    names, differences = compare(published, copy)
    assert set(names) == set(made) and not differences
    (published / "seconds.csv").write_text("1")
    (published / "tables/a.csv").unlink()
    (copy / "published/s/README.md").unlink()
    _, differences = compare(published, copy)
    assert {str(one) for one in differences} == {
        "seconds.csv: differs in line 1: '1' is published, '{}' redrawn",
        "tables/a.csv: made by the redraw, but not published",
        "README.md: published, but not made by the redraw",
    }
