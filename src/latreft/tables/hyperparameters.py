"""Table 4 and Section A: the settings of every method as run, read from the training records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from latreft.records import RunRecord, long_form
from latreft.tables.collect import check_records, normal_cells
from latreft.tables.context import Context
from latreft.tables.render import MISSING, NONE, Table

COLUMNS = ["scale", "dataset", "model", "method", "arm", "setting", "value"]
NOTE = (
    "Where data sets differ, the value of each is given. Arms of the ablations stand in the CSV, not here. The paper's "
    "settings stand in resources/paper/table_hyperparameters.csv."
)


def build(context: Context) -> Table:
    """The table: CSV one row a data set, model, arm and setting (values as JSON); else models side by side."""
    frame = settings_frame(context)
    return Table(
        label=f"tab:{context.scale}:{context.target}",
        caption=f"{context.title}. {context.scale_words}.",
        frame=frame,
        display=_display(context, frame),
        lead=2,
        notes=[NOTE],
    )


def settings_frame(context: Context) -> pd.DataFrame:
    """Settings of the training and fine-tuning records, equal over seeds; a cell without a record is a row ``missing``.

    Raises ``ValueError`` for a record of another scale, or where seeds of one arm differ in a setting.
    """
    check_records(long_form(context.records), context.scale)
    values: dict[tuple[str, ...], str] = {}
    trained = [record for record in context.records if record.kind in ("train", "finetune")]
    for record in trained:
        for setting, value in flat(record.settings):
            key = (record.scale, record.dataset, record.model.name, record.method, record.arm, setting)
            text = json.dumps(value, ensure_ascii=False)
            if values.setdefault(key, text) != text:
                raise ValueError(f"{' '.join(key)}: seeds were trained with {values[key]} and {text}")
    done = {_run(record) for record in trained}
    for cell in normal_cells(context.cells):
        run = tuple(str(cell[key]) for key in ("dataset", "model", "method", "arm"))
        if run not in done and cell["method"] != "none":
            values[(context.scale, *run, MISSING)] = MISSING
    return pd.DataFrame([(*key, value) for key, value in sorted(values.items())], columns=COLUMNS)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings with nested keys joined by dots."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _run(record: RunRecord) -> tuple[str, ...]:
    return record.dataset, record.model.name, record.method, record.arm


def _display(context: Context, frame: pd.DataFrame) -> pd.DataFrame:
    """One row a method and setting, one column a model; arms that differ from their method's settings are left out."""
    shown = frame[(frame["arm"] == frame["method"]) | (frame["method"] == "finetune")]
    models = list(dict.fromkeys([*(cell["model"] for cell in context.places), *shown["model"]]))
    order = dict.fromkeys(["finetune", *(cell["method"] for cell in context.places), *shown["method"]])
    rows = []
    for method in order:
        own = shown[shown["method"] == method]
        settings = [setting for setting in dict.fromkeys(own["setting"]) if setting != MISSING]
        for setting in settings or ([NONE] if len(own) else []):
            row = {"Method": context.name("methods", method), "Setting": setting}
            for model in models:
                found = own[(own["model"] == model) & own["setting"].isin([setting, MISSING])]
                row[context.name("models", model)] = _by_dataset(context, found)
            rows.append(row)
    titles = [context.name("models", model) for model in models]
    return pd.DataFrame(rows, columns=["Method", "Setting", *titles])


def _by_dataset(context: Context, found: pd.DataFrame) -> str:
    """The value; where data sets differ, each value with the data sets that have it."""
    groups: dict[str, list[str]] = {}
    for dataset, value in zip(found["dataset"], found["value"], strict=True):
        groups.setdefault(_plain(value), []).append(context.name("datasets", dataset))
    if len(groups) <= 1:
        return next(iter(groups), NONE)
    return "; ".join(f"{text} ({', '.join(titles)})" for text, titles in groups.items())


def _plain(value: str) -> str:
    if value == MISSING:
        return MISSING
    return {"null": "none", "true": "yes", "false": "no"}.get(value, value.strip('"'))
