"""Tables as CSV, Markdown and LaTeX."""

import re

import pandas as pd
import pytest

from latreft.tables.render import Table, csv_text, escape, latex_text, markdown_table, markdown_text, write

HOSTILE = "50% of a_b & c#d {x} $y ~z ^t \\ [0.1, 0.2] <k>"


def table(rows=2, **changes):
    display = pd.DataFrame(
        {"Model_1": ["A_1"] * rows, "Method": [f"m{i}" for i in range(rows)], "ASR %": [HOSTILE] * rows}
    )
    values = {
        "label": "tab:small:main_imdb",
        "caption": f"Caption {HOSTILE}",
        "frame": display,
        "display": display,
        "lead": 2,
    }
    return Table(**(values | changes))


def balanced(tex):
    """Whether braces match and every environment that begins also ends, in order."""
    depth, environments = 0, []
    for token in re.findall(r"\\\\|\\[{}%&_#$]|[{}]|\\begin\{[a-z*]+\}|\\end\{[a-z*]+\}", tex):
        if token.startswith(r"\begin"):
            environments.append(token[7:-1])
        elif token.startswith(r"\end"):
            assert environments.pop() == token[5:-1]
        elif token in "{}":
            depth += 1 if token == "{" else -1
            assert depth >= 0
    return depth == 0 and not environments


@pytest.mark.parametrize(
    "changes", [{}, {"rows": 60}, {"supplement": ("More_of 5%", table().display), "notes": [HOSTILE]}]
)
def test_latex_is_balanced_and_escaped(changes):
    tex = latex_text(table(**changes))
    assert balanced(tex)
    body = "\n".join(line for line in tex.splitlines() if not line.startswith("% needs"))
    without = re.sub(r"\\label\{[^}]*\}", "", body)
    assert not re.search(r"(?<!\\)[%#~^]", without.replace(r"\textasciitilde{}", ""))
    assert not re.search(r"(?<!\\)_", without)


def test_every_row_has_the_columns_of_the_head():
    tex = latex_text(table(rows=3))
    rows = [line for line in tex.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {2}
    assert r"\begin{tabular}{llr}" in tex


def test_the_label_carries_the_scale():
    assert r"\label{tab:small:main_imdb}" in latex_text(table())


def test_groups_are_parted_and_named_once():
    display = pd.DataFrame({"Model": ["A", "A", "B"], "Method": ["x", "y", "x"], "v": ["1", "2", "3"]})
    tex = latex_text(table(display=display))
    assert tex.count(r"\midrule") == 2 and tex.count("\nA &") == 1 and "\n & y" in tex


def test_a_wide_table_spans_both_columns():
    display = pd.DataFrame([[str(i) for i in range(9)]], columns=[f"c{i}" for i in range(9)])
    tex = latex_text(table(display=display))
    assert r"\begin{table*}" in tex and r"\resizebox{\textwidth}" in tex and balanced(tex)


def test_markdown_keeps_pipes_and_aligns_numbers():
    text = markdown_table(pd.DataFrame({"a|b": ["x"], "v": ["1"]}), 1)
    assert text.splitlines() == ["| a\\|b |   v |", "| ---- | --: |", "| x    |   1 |"]


def test_markdown_has_caption_supplement_and_notes():
    text = markdown_text(table(notes=["Note one."], supplement=("Second", table().display)))
    assert text.startswith("**Caption") and "**Second**" in text and text.endswith("- Note one.\n")


def test_an_empty_table_is_still_a_table():
    empty = pd.DataFrame(columns=["Method", "Setting"])
    assert markdown_table(empty, 1).count("\n") == 1 and balanced(latex_text(table(display=empty)))


def test_escape_leaves_nothing_special():
    assert escape("a_b%") == r"a\_b\%" and escape("–") == "--"


def test_csv_numbers_are_exact():
    frame = pd.DataFrame({"value": [0.1 + 0.2, float("nan")], "n": pd.array([100, None], dtype="Int64")})
    assert csv_text(table(frame=frame)) == "value,n\n0.30000000000000004,100\n,\n"


def test_equal_tables_give_equal_bytes(tmp_path):
    names = ("csv", "md", "tex")
    for folder in ("a", "b"):
        write(table(), *(tmp_path / folder / f"t.{name}" for name in names))
    for name in names:
        assert (tmp_path / "a" / f"t.{name}").read_bytes() == (tmp_path / "b" / f"t.{name}").read_bytes()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["t.csv", "t.md", "t.tex"]
