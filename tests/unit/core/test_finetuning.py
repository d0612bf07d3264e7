"""Clean fine-tuning of a whole classifier: resumable, and its classes are the data's from batch to report."""

from __future__ import annotations

import types

import pandas as pd
import pytest
import torch
from torch.nn import functional as F
from unit.defenses.arms import LABELS, TEXTS, StopAt, arm, checkpoint, fresh, tokenizer
from unit.models.tiny import FAMILIES

from latreft.batches import Batches
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.evaluation import accuracy
from latreft.files import sha256, write_json
from latreft.training import Losses, linear_decay, train


def finetune(model, steps: int = 4, **kwargs):
    model.requires_grad_(True)
    batches = Batches(arm(model, {}).examples, 2, 5, model.device)

    def losses_at(step: int) -> Losses:
        batch = batches.at(step)
        return Losses(F.cross_entropy(model(batch), batch.labels), batch.tokens.numel())

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    return train(
        model, optimizer, losses_at, steps, schedule=linear_decay, max_gradient_norm=1.0, accumulate=2,
        names_at=batches.names, **kwargs,
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_a_killed_run_ends_bit_for_bit_as_an_uninterrupted_one(name, tmp_path):
    whole, killed, resumed = (fresh(name) for _ in range(3))
    expected = finetune(whole)
    with pytest.raises(KeyboardInterrupt):
        finetune(killed, checkpoint=checkpoint(tmp_path / "c.pt"), progress=StopAt(3))
    torch.manual_seed(50)
    found = finetune(resumed, checkpoint=checkpoint(tmp_path / "c.pt"))
    assert found.history == expected.history
    for (key, one), other in zip(whole.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other), key


@pytest.mark.parametrize("name", FAMILIES)
def test_class_one_of_the_data_is_class_one_of_head_and_report(name, tmp_path):
    model = fresh(name, head=1.0)
    finetune(model, 40)
    rows = pd.DataFrame({"id": [f"v{i}" for i in range(len(TEXTS))], "text": TEXTS, "label": LABELS, "tokens": 9})
    rows.to_parquet(tmp_path / "validation.parquet")
    write_json(tmp_path / "manifest.json", {"files": {"validation.parquet": sha256(tmp_path / "validation.parquet")}})
    silent = types.SimpleNamespace(update=lambda *_: None)
    job = types.SimpleNamespace(device="cpu", engine=ReferenceEngine(), progress=lambda *_: silent)
    settings = {"examples": None, "batch_size": 3, "max_length": 40}
    found = accuracy(job, Defended(model), tokenizer(), tmp_path / "manifest.json", settings)
    assert found.outcomes["id"].tolist() == rows["id"].tolist()
    assert found.outcomes["prediction"].tolist() == LABELS
    assert [found.metrics[key].value for key in ("accuracy", "recall_0", "recall_1")] == [1.0, 1.0, 1.0]
    assert found.metrics["accuracy"].n == len(TEXTS)
    wrong = found.outcomes["label"] != found.outcomes["prediction"]
    assert (found.outcomes.loc[~wrong, "loss"] < 0.6932).all()
