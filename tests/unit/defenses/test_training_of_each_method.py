"""Every method trains what it should, leaves the rest bit for bit, and goes on after a kill as if there was none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from unit.defenses.arms import TRAINED, StopAt, checkpoint, fresh, scores, settings, train
from unit.models.tiny import FAMILIES

from latreft.models.classifier import parameter_count


def snapshot(model) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", TRAINED)
def test_the_loss_falls_and_only_the_trained_part_moves(method, name):
    model = fresh(name)
    before = snapshot(model)
    changes = {"r2d2": {"steps_per_round": 10}}.get(method, {"epochs": 10})
    trained = train(method, model, changes)
    losses = [entry["loss"] for entry in trained.summary.history]
    assert len(losses) == trained.summary.steps == 20
    assert sum(losses[-4:]) < sum(losses[:4])
    after = snapshot(model)
    kept = {key.replace(".base_layer", ""): value for key, value in after.items() if "lora_" not in key}
    assert set(kept) == set(before)
    moved = {key for key in before if not torch.equal(before[key], kept[key])}
    if method == "lat_reft":
        assert moved == set()
        assert trained.trainable == 2 * 4 * model.width + 4
    elif method == "cat":
        assert moved == {"head.weight"}
        assert all(value.abs().max() > 0 for key, value in after.items() if "lora_B" in key)
    else:
        assert moved == set(before)
        assert trained.trainable == parameter_count(model)
    assert trained.flops_per_token > 0


@pytest.mark.parametrize(
    ("method", "stop"),
    [("lat_reft", 2), ("lat_reft", 6), ("lat", 4), ("cat", 4), ("r2d2", 2), ("r2d2", 4), ("r2d2", 6)],
    ids=["lat_reft", "lat_reft last step", "lat", "cat", "r2d2 mid-round", "r2d2 round boundary", "r2d2 second round"],
)
def test_a_killed_training_ends_as_an_uninterrupted_one(method, stop, tmp_path):
    whole = train(method)
    path = tmp_path / "train.pt"
    torch.manual_seed(11)
    with pytest.raises(KeyboardInterrupt):
        train(method, checkpoint=checkpoint(path), progress=StopAt(stop))
    assert torch.load(path, weights_only=True)["step"] == stop - 1
    torch.manual_seed(77)  # another process: other random numbers were drawn before
    torch.rand(5)
    resumed = train(method, checkpoint=checkpoint(path))
    assert resumed.summary.history == whole.summary.history
    assert resumed.summary.flops == whole.summary.flops
    assert resumed.summary.flop_tokens == whole.summary.flop_tokens
    assert set(resumed.weights) == set(whole.weights)
    for name, tensor in whole.weights.items():
        assert torch.equal(tensor, resumed.weights[name]), name
    assert resumed.flops_per_token == whole.flops_per_token
    assert resumed.metrics == whole.metrics


@pytest.mark.parametrize("method", TRAINED)
def test_the_seed_decides_the_result_whatever_was_drawn_before(method):
    torch.manual_seed(1)
    one = train(method)
    torch.manual_seed(2)
    again = train(method)
    for name, tensor in one.weights.items():
        assert torch.equal(tensor, again.weights[name]), name
    other = train(method, seed=4)
    assert any(not torch.equal(tensor, other.weights[name]) for name, tensor in one.weights.items())


@pytest.mark.parametrize("method", TRAINED)
def test_a_checkpoint_of_another_fingerprint_is_not_used(method, tmp_path):
    path = tmp_path / "train.pt"
    with pytest.raises(KeyboardInterrupt):
        train(method, seed=9, checkpoint=checkpoint(path, "other"), progress=StopAt(3))
    said = []
    kept = checkpoint(path, "this")
    kept.log = said.append
    found, clean = train(method, checkpoint=kept), train(method)
    assert any("other settings, code or data" in line for line in said)
    for name, tensor in clean.weights.items():
        assert torch.equal(tensor, found.weights[name]), name


def test_r2d2_does_not_attack_again_what_a_killed_run_has_attacked(tmp_path, monkeypatch):
    """The search is the long part: its result is saved at once, not with the next due checkpoint."""
    from latreft.defenses import r2d2

    whole, rounds, real = train("r2d2"), [], r2d2.search
    monkeypatch.setattr(
        r2d2, "search", lambda run, s, number, content: rounds.append(number) or real(run, s, number, content)
    )
    with pytest.raises(KeyboardInterrupt):
        train("r2d2", checkpoint=checkpoint(tmp_path / "train.pt", every_seconds=1e9), progress=StopAt(4))
    found = train("r2d2", checkpoint=checkpoint(tmp_path / "train.pt", every_seconds=1e9))
    assert rounds == [1, 2]
    assert all(torch.equal(tensor, found.weights[name]) for name, tensor in whole.weights.items())


@pytest.mark.parametrize("method", TRAINED)
def test_nothing_is_trained_on_after_a_loss_that_is_not_a_number(method):
    from latreft.training import TrainingFailed

    model = fresh()
    with torch.no_grad():
        model.head.weight[0, 0] = float("nan")
    expected = r"the loss is nan at step 1 of 6, examples t\d(, t\d){3}; last good state: no checkpoint was saved"
    if method == "r2d2":  # its attack meets the loss first
        with pytest.raises(FloatingPointError, match="a candidate's loss is nan"):
            train(method, model)
    else:
        with pytest.raises(TrainingFailed, match=expected):
            train(method, model)


def test_r2d2_names_the_examples_of_a_loss_that_is_not_a_number(monkeypatch):
    from latreft.defenses import r2d2
    from latreft.training import TrainingFailed

    broken = SimpleNamespace(cross_entropy=lambda *_: torch.tensor(float("nan"), requires_grad=True))
    monkeypatch.setattr(r2d2, "F", broken)
    with pytest.raises(TrainingFailed, match=r"the loss is nan at step 1 of 6, examples t\d(, t\d){3}"):
        train("r2d2")


def test_lat_reft_records_the_surrogates_parameters():
    model = fresh()
    count = parameter_count(model)
    assert train("lat_reft", changes={"pruning_ratio": 0}).surrogate_parameters == count
    cut = round(0.5 * 3 * 24) * 3 * 16
    assert train("lat_reft", changes={"pruning_ratio": 0.5}).surrogate_parameters == count - cut
    assert train("lat_reft", changes={"pruning_ratio": 1.0}).surrogate_parameters == count - 2 * cut


def test_lat_reft_keeps_the_rotation_orthonormal_and_decays_only_the_rest(monkeypatch):
    from latreft.defenses import base

    groups = []
    real = base.run_training

    def spy(trained, optimizer, *args, **kwargs):
        groups.extend((len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups)
        return real(trained, optimizer, *args, **kwargs)

    monkeypatch.setattr(base, "run_training", spy)
    rotation = train("lat_reft", changes={"weight_decay": 0.5, "epochs": 20}).weights["rotation"]
    assert groups == [(2, 0.5), (1, 0.0)]
    torch.testing.assert_close(rotation.T @ rotation, torch.eye(4), rtol=0, atol=1e-5)


@pytest.mark.parametrize("start", ["identity", "random"])
def test_an_edit_that_equals_the_identity_is_said_aloud(start):
    said = []
    trained = train("lat_reft", changes={"reft_start": start, "learning_rate": 1e-30}, log=said.append)
    warned = any("equals the identity" in line for line in said)
    assert warned == (start == "identity")
    assert (trained.metrics["edit_norm"] < 1e-6) == (start == "identity")


def test_a_trained_edit_is_not_called_the_identity():
    said = []
    assert train("lat_reft", log=said.append).metrics["edit_norm"] > 1e-3
    assert said == []


def test_autocast_trains_an_edit_that_can_be_loaded():
    from latreft.interventions.reft import LoReFT

    with torch.autocast("cpu", dtype=torch.bfloat16):
        trained = train("lat_reft")
    assert {tensor.dtype for tensor in trained.weights.values()} == {torch.float32}
    LoReFT.from_weights(trained.weights)


def test_a_bfloat16_backbone_gets_a_float32_edit():
    scores("llama", torch.bfloat16)
    trained = train("lat_reft", fresh(dtype=torch.bfloat16))
    assert {tensor.dtype for tensor in trained.weights.values()} == {torch.float32}


@pytest.mark.parametrize(("ratio", "radius"), [("constant", 0.3), ("sqrt", 0.6)])
def test_the_radius_scales_with_the_window_only_where_asked(ratio, radius):
    assert settings("lat_reft", epsilon_scaling=ratio).radius == pytest.approx(radius)


def test_r2d2_rounds_of_gcg_are_the_papers():
    from latreft.defenses.r2d2 import Settings

    assert [Settings().gcg_rounds(r) for r in range(1, 9)] == [8 + 3 * r for r in range(1, 9)]


def test_r2d2_prefers_high_loss_and_recent_texts():
    from latreft.defenses.r2d2 import Attacked, pool_weights

    pool = [Attacked("a", (1,), 0, 5.0, 1), Attacked("b", (1,), 0, 1.0, 1), Attacked("c", (1,), 0, 3.0, 2)]
    weights = pool_weights(pool, 0.5)
    ranks = torch.tensor([2 + 0, 0 + 1, 1 + 2], dtype=torch.float64)
    torch.testing.assert_close(weights, torch.exp(0.5 * (ranks - 3)))
    assert torch.equal(pool_weights(pool, 0.0), torch.ones(3, dtype=torch.float64))


def test_r2d2_without_room_for_the_suffix_is_an_error():
    with pytest.raises(ValueError, match="max_length 3 leaves no room beside 3 suffix tokens"):
        train("r2d2", max_length=3)


def test_none_trains_nothing():
    model = fresh()
    before = snapshot(model)
    trained = train("none", model)
    assert (trained.kind, trained.weights, trained.trainable, trained.flops_per_token) == ("none", {}, 0, None)
    assert all(torch.equal(value, before[key]) for key, value in snapshot(model).items())
