"""The loss of LAT and CAT written out with plain full passes: clean, and under the perturbation that PGD found."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F
from unit.defenses.arms import arm, fresh, settings

from latreft.defenses import base, cat, lat
from latreft.engine.reference import FullPrepared

STEP = 1


def own_step(monkeypatch, run, method, chosen):
    """The trained module, the perturbation, and the losses of one step, each descended on; the loop is taken away."""
    caught = {}
    ascend = FullPrepared.ascend

    class Stop(Exception):
        pass

    def watched(self, *args, **kwargs):
        caught["delta"] = ascend(self, *args, **kwargs)
        return caught["delta"]

    def instead(trained, _optimizer, losses_at, *_args, **_kwargs):
        caught["trained"], caught["losses"] = trained, []
        for losses in losses_at(STEP):
            losses.total.backward()
            caught["losses"].append(losses)
        raise Stop

    monkeypatch.setattr(FullPrepared, "ascend", watched)
    monkeypatch.setattr(base, "run_training", instead)
    with pytest.raises(Stop):
        method.train(run, chosen)
    return caught["trained"], caught["delta"], caught["losses"]


@pytest.mark.parametrize("method", [lat, cat], ids=["lat", "cat"])
def test_loss_and_gradients_are_those_written_out(monkeypatch, method):
    model = fresh("llama", torch.float64)
    name = method.__name__.rpartition(".")[2]
    chosen = settings(name, lambda_adv=0.7)
    run = arm(model, {})
    trained, delta, losses = own_step(monkeypatch, run, method, chosen)
    found = {key: p.grad.clone() for key, p in trained.named_parameters() if p.requires_grad}
    trained.zero_grad()

    batch = run.batches(chosen).at(STEP)
    assert batch.padded and delta.abs().amax(dim=(1, 2)).min() > 0
    layer = chosen.attack_layer if method is lat else 0
    assert delta.shape[1] == (min(chosen.window, batch.length) if method is lat else batch.length)
    moved = F.pad(delta * batch.mask[:, -delta.shape[1] :, None], (0, 0, batch.length - delta.shape[1], 0))
    clean = F.cross_entropy(model(batch), batch.labels)
    with model.edited({layer: lambda hidden: hidden + moved}):
        adversarial = F.cross_entropy(model(batch), batch.labels)
    (clean + 0.7 * adversarial).backward()
    assert adversarial.item() > clean.item() + 1e-3
    assert sum(one.total.item() for one in losses) == pytest.approx((clean + 0.7 * adversarial).item(), rel=1e-10)
    values = {key: value for one in losses for key, value in one.values.items()}
    assert values == pytest.approx({"clean": clean.item(), "adversarial": adversarial.item()}, rel=1e-10)
    assert sum(one.tokens for one in losses) == batch.tokens.numel()
    expected = {key: p.grad for key, p in trained.named_parameters() if p.requires_grad}
    assert any(gradient.abs().max() > 0 for gradient in expected.values())
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)
