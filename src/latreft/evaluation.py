"""Clean accuracy of a defended classifier, with each example's prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import functional as F

from latreft.data.prepared import load_split
from latreft.engine.interface import Defended, predict
from latreft.files import atomic
from latreft.job import Job
from latreft.models.batch import batches_by_length, collate
from latreft.models.tokenisation import TextTokenizer
from latreft.records import Metric, rate

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Accuracy:
    """Metrics, and one row an example (id, label, prediction, loss in nats) from which they can be recomputed."""

    metrics: dict[str, Metric]
    outcomes: pd.DataFrame


def accuracy_metrics(outcomes: pd.DataFrame) -> dict[str, Metric]:
    """``accuracy``, and recall of each class, from per-example outcomes."""
    right = outcomes["label"] == outcomes["prediction"]
    metrics = {"accuracy": rate(int(right.sum()), len(outcomes))}
    for label in (0, 1):
        of_class = right[outcomes["label"] == label]
        if len(of_class):
            metrics[f"recall_{label}"] = rate(int(of_class.sum()), len(of_class))
    return metrics | {"loss": Metric(value=float(outcomes["loss"].mean()), unit="nats", n=len(outcomes))}


def accuracy(
    job: Job, defended: Defended, tokenizer: TextTokenizer, data: str | Path, settings: Mapping[str, Any]
) -> Accuracy:
    """Evaluate on the validation split of the data manifest ``data``.

    ``settings``: ``max_length`` (tokens), ``batch_size``, and ``examples`` (None: the whole split).
    """
    import pandas as pd

    rows = load_split(data, "validation").iloc[: settings["examples"]]
    examples = tokenizer.examples(rows["id"], rows["text"], rows["label"], settings["max_length"])
    progress = job.progress("accuracy", "example")
    found: dict[int, tuple[int, float]] = {}
    for indices in batches_by_length(examples, settings["batch_size"]):
        batch = collate([examples[i] for i in indices]).to(job.device)
        logits = predict(job.engine, defended, batch)
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        classes = (logits[:, 1] > logits[:, 0]).long()
        found.update(zip(indices, zip(classes.tolist(), losses.tolist(), strict=True), strict=True))
        progress.update(len(found), len(examples))
    ordered = [found[i] for i in range(len(examples))]
    outcomes = pd.DataFrame(
        {
            "id": [example.id for example in examples],
            "label": [example.label for example in examples],
            "prediction": [prediction for prediction, _ in ordered],
            "loss": [loss for _, loss in ordered],
        }
    )
    return Accuracy(accuracy_metrics(outcomes), outcomes)


def write_outcomes(outcomes: pd.DataFrame, path: str | Path) -> None:
    """Write per-example outcomes as parquet, atomically."""
    with atomic(path) as temporary:
        outcomes.to_parquet(temporary, index=False)
