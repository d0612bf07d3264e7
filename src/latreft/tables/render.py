"""Tables as files: CSV for machines, Markdown and LaTeX for readers. Equal tables give equal bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from latreft.files import write_text

NONE = "–"
MISSING = "missing"
LONG_ROWS = 45
WIDE_COLUMNS = 7
LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "“": "``", "”": "''", "’": "'", "×": r"$\times$",
    "λ": r"$\lambda$", "ε": r"$\varepsilon$", "α": r"$\alpha$", "<": r"\textless{}", ">": r"\textgreater{}",
    "ρ": r"$\rho$", "≈": r"$\approx$", "≤": r"$\le$", "≥": r"$\ge$", "−": r"$-$", "[": "{[}", "]": "{]}",
}  # fmt: skip


@dataclass(frozen=True)
class Table:
    """One table: ``frame`` holds raw numbers, ``display`` the same as text; ``supplement`` is a second, captioned one.

    ``lead`` is the number of leading columns that say what a row is. ``widths`` sets LaTeX columns of text, of the table
    and of its supplement, as shares of the text's width.
    """

    label: str
    caption: str
    frame: pd.DataFrame
    display: pd.DataFrame
    lead: int = 1
    notes: Sequence[str] = ()
    supplement: tuple[str, pd.DataFrame] | None = field(default=None)
    widths: tuple[Sequence[float], Sequence[float]] = ((), ())


def write(table: Table, csv: str | Path, md: str | Path, tex: str | Path) -> None:
    """Write the three forms, each whole or not at all."""
    write_text(csv, csv_text(table))
    write_text(md, markdown_text(table))
    write_text(tex, latex_text(table))


def csv_text(table: Table) -> str:
    """Raw numbers in their shortest exact form; an empty field has no value."""
    return table.frame.to_csv(index=False, lineterminator="\n")


def markdown_text(table: Table) -> str:
    """Caption, table, supplement and notes."""
    blocks = [f"**{table.caption}**", markdown_table(table.display, table.lead)]
    if table.supplement is not None:
        caption, display = table.supplement
        blocks += [f"**{caption}**", markdown_table(display, table.lead)]
    if table.notes:
        blocks.append("\n".join(f"- {note}" for note in table.notes))
    return "\n\n".join(blocks) + "\n"


def markdown_table(display: pd.DataFrame, lead: int) -> str:
    """A pipe table: leading columns to the left, numbers to the right."""
    rows = [list(display.columns), *display.to_numpy().tolist()]
    texts = [[str(text).replace("|", r"\|") for text in row] for row in rows]
    widths = [max(3, *(len(row[i]) for row in texts)) for i in range(len(texts[0]))]
    rule = [
        "-" * width if i < lead else "-" * (width - 1) + ":" for i, width in enumerate(widths)
    ]  # fmt: skip

    def line(row: Iterable[str]) -> str:
        padded = (
            text.ljust(width) if i < lead else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(texts[0]), line(rule), *map(line, texts[1:])])


def escape(text: str) -> str:
    """``text`` for LaTeX: every special character escaped."""
    return "".join(LATEX.get(character, character) for character in str(text))


def latex_text(table: Table) -> str:
    """One ``table`` (or ``longtable``, if it would not fit a page) and the supplement's, with booktabs rules."""
    own, further = table.widths
    parts = [latex_table(table.display, table.lead, table.caption, table.label, table.notes, own)]
    if table.supplement is not None:
        caption, display = table.supplement
        parts.append(latex_table(display, table.lead, caption, f"{table.label}:supplement", (), further))
    return "% needs: booktabs, graphicx, longtable\n" + "\n".join(parts)


def latex_table(
    display: pd.DataFrame, lead: int, caption: str, label: str, notes: Sequence[str], widths: Sequence[float] = ()
) -> str:
    """One LaTeX table. A repeated entry of the first column is left blank, and a thin rule parts the groups."""
    columns = "l" * lead + "r" * (len(display.columns) - lead)
    if widths:
        columns = "".join(rf"p{{{width:g}\textwidth}}" for width in widths)
    head = " & ".join(escape(name) for name in display.columns) + r" \\"
    body = _latex_rows(display, lead)
    named = rf"\caption{{{escape(caption)}}}\label{{{label}}}"
    remarks = " ".join(escape(note) for note in notes)
    if len(display) > LONG_ROWS:
        lines = [r"\begingroup\footnotesize", rf"\begin{{longtable}}{{{columns}}}", named + r"\\", r"\toprule", head]
        lines += [r"\midrule", r"\endfirsthead", r"\toprule", head, r"\midrule", r"\endhead", *body, r"\bottomrule"]
        lines += [r"\end{longtable}", *([remarks, ""] if remarks else []), r"\endgroup"]
        return "\n".join(lines) + "\n"
    inner = [
        rf"\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        head,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
    ]
    if len(display.columns) > WIDE_COLUMNS:
        inner[0] = r"\resizebox{\textwidth}{!}{" + inner[0]
        inner[-1] += "}"
    below = [rf"\par\smallskip\footnotesize {remarks}"] if remarks else []
    kind = "table*" if len(display.columns) > WIDE_COLUMNS else "table"
    lines = [rf"\begin{{{kind}}}", r"\centering\small", named, *inner, *below, rf"\end{{{kind}}}"]
    return "\n".join(lines) + "\n"


def _latex_rows(display: pd.DataFrame, lead: int) -> list[str]:
    lines: list[str] = []
    before = None
    for row in display.to_numpy().tolist():
        texts = [escape(text) for text in row]
        if lead > 1 and row[0] == before:
            texts[0] = ""
        elif lead > 1 and before is not None:
            lines.append(r"\midrule")
        before = row[0]
        lines.append(" & ".join(texts) + r" \\")
    return lines
