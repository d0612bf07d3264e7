"""The one training loop: what it stops at, what it saves, and what it goes on from."""

from __future__ import annotations

import os
import signal
import weakref

import pytest
import torch
from torch import nn

from latreft import made_once
from latreft.batches import batch_indices
from latreft.cost.measured import FlopMeter
from latreft.training import Checkpoint, Interrupted, Losses, TrainingFailed, linear_decay, train

torch.set_num_threads(1)
DATA = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
GOAL = DATA.sum(dim=1)


class Toy:
    """A linear regression on batches of two, with dropout of its own to show what random numbers do."""

    def __init__(self, size: int = 2, noise: float = 0.1, rate: float = 0.05):
        self.model = nn.Linear(4, 1)
        with torch.no_grad():
            self.model.weight.fill_(0.1)
            self.model.bias.zero_()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.size, self.noise, self.seen = size, noise, []

    def losses_at(self, step: int) -> Losses:
        self.seen.append(step)
        chosen = batch_indices(12, self.size, 0, step)
        data = DATA[chosen]
        if self.noise:
            data = data + self.noise * torch.randn(data.shape)
        error = (self.model(data)[:, 0] - GOAL[chosen]).square().mean()
        return Losses(error, 4 * self.size, {"error": error.item()})

    def train(self, steps: int = 8, **kwargs):
        return train(self.model, self.optimizer, self.losses_at, steps, **kwargs)


class At:
    """Progress that does something at one step."""

    def __init__(self, step, action):
        self.step, self.action, self.calls = step, action, []

    def update(self, done, total, values):
        self.calls.append((done, total, dict(values)))
        if done == self.step:
            self.action()


def kill():
    raise KeyboardInterrupt


def kept(path, every=0.0, fingerprint="f", log=lambda _line: None) -> Checkpoint:
    return Checkpoint(path, fingerprint, every, log)


def weights(toy: Toy) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in toy.model.parameters()])


# --- batches ---


def test_linear_decay_goes_from_one_to_nearly_zero():
    assert [linear_decay(step, 4) for step in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]


# --- resuming ---


@pytest.mark.parametrize("stop", [2, 5, 8])
@pytest.mark.parametrize(
    "options", [{}, {"schedule": linear_decay, "max_gradient_norm": 0.5}], ids=["plain", "decay, clip"]
)
def test_a_killed_run_ends_bit_for_bit_as_an_uninterrupted_one(stop, options, tmp_path):
    torch.manual_seed(4)
    whole = Toy()
    expected = whole.train(**options)
    torch.manual_seed(4)
    killed = Toy()
    with pytest.raises(KeyboardInterrupt):
        killed.train(checkpoint=kept(tmp_path / "c.pt"), progress=At(stop, kill), **options)
    torch.manual_seed(99)
    resumed = Toy()
    found = resumed.train(checkpoint=kept(tmp_path / "c.pt"), **options)
    assert torch.equal(weights(resumed), weights(whole))
    assert found.history == expected.history
    assert (found.flops, found.flop_tokens, found.steps) == (expected.flops, expected.flop_tokens, expected.steps)
    assert resumed.seen == list(range(stop - 1, 8))


def test_a_state_between_two_saves_is_not_lost_or_done_twice(tmp_path):
    whole = Toy(noise=0)
    expected = whole.train()
    checkpoint, toy = kept(tmp_path / "c.pt", every=1e9), Toy(noise=0)

    class Sometimes(At):
        def update(self, done, total, values):
            checkpoint.every_seconds = 0.0 if done == 3 else 1e9
            super().update(done, total, values)

    with pytest.raises(KeyboardInterrupt):
        toy.train(checkpoint=checkpoint, progress=Sometimes(6, kill))
    resumed = Toy(noise=0)
    found = resumed.train(checkpoint=kept(tmp_path / "c.pt", every=1e9))
    assert resumed.seen == [3, 4, 5, 6, 7]
    assert found.history == expected.history
    assert torch.equal(weights(resumed), weights(whole))


def test_a_finished_state_trains_no_more(tmp_path):
    toy = Toy()
    expected = toy.train(checkpoint=kept(tmp_path / "c.pt"))
    again = Toy()
    found = again.train(checkpoint=kept(tmp_path / "c.pt"))
    assert again.seen == []
    assert found.history == expected.history
    assert torch.equal(weights(again), weights(toy))


def test_a_methods_own_state_comes_back_in_place(tmp_path):
    mine = {"pool": [{"id": "a", "loss": 0.5}], "round": 0}

    def before(step):
        mine["round"] = step + 1

    with pytest.raises(KeyboardInterrupt):
        Toy().train(checkpoint=kept(tmp_path / "c.pt"), progress=At(4, kill), before_step=before, extra=mine)
    again = {"pool": [], "round": 0, "stray": 1}
    seen = []
    Toy().train(checkpoint=kept(tmp_path / "c.pt"), before_step=lambda step: seen.append(dict(again)), extra=again)
    assert seen[0] == {"pool": [{"id": "a", "loss": 0.5}], "round": 3}


def test_buffers_come_back_too(tmp_path):
    class Buffered(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("frame", torch.randn(3), persistent=False)

    toy, other = Toy(), Toy()
    toy.model, other.model = Buffered(), Buffered()
    for one in (toy, other):
        one.optimizer = torch.optim.AdamW(one.model.parameters(), lr=0.1)
    toy.train(checkpoint=kept(tmp_path / "c.pt"))
    assert not torch.equal(toy.model.frame, other.model.frame)
    other.train(checkpoint=kept(tmp_path / "c.pt"))
    assert torch.equal(toy.model.frame, other.model.frame)


@pytest.mark.parametrize("fault", ["other", "torn", "empty", "text", "list"])
def test_a_state_that_is_not_this_runs_or_cannot_be_read_is_left_aside(fault, tmp_path):
    path, said = tmp_path / "c.pt", []
    Toy().train(4, checkpoint=kept(path, fingerprint="other" if fault == "other" else "f"))
    if fault == "torn":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif fault == "empty":
        path.write_bytes(b"")
    elif fault == "text":
        path.write_text("not a state")
    elif fault == "list":
        torch.save([1, 2], path)
    toy = Toy()
    toy.train(4, checkpoint=kept(path, log=said.append))
    assert toy.seen == [0, 1, 2, 3]
    assert len(said) == 1
    assert str(path) in said[0]
    assert "starting from the beginning" in said[0]


def test_resuming_is_said_with_step_and_file(tmp_path):
    said = []
    with pytest.raises(KeyboardInterrupt):
        Toy().train(checkpoint=kept(tmp_path / "c.pt"), progress=At(4, kill))
    Toy().train(checkpoint=kept(tmp_path / "c.pt", log=said.append))
    assert said == [f"resuming at step 3 from {tmp_path / 'c.pt'}"]
    checkpoint = kept(tmp_path / "c.pt")
    checkpoint.remove()
    checkpoint.remove()
    assert not (tmp_path / "c.pt").exists()


def test_a_full_disk_leaves_the_last_whole_state(tmp_path, monkeypatch):
    whole = Toy(noise=0)
    whole.train()
    checkpoint, toy = kept(tmp_path / "c.pt"), Toy(noise=0)
    real = torch.save

    def full(state, path):
        if state["step"] == 4:
            path.write_bytes(b"half")
            raise OSError(28, "No space left on device")
        real(state, path)

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        toy.train(checkpoint=checkpoint)
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["c.pt"]
    resumed = Toy(noise=0)
    resumed.train(checkpoint=kept(tmp_path / "c.pt"))
    assert resumed.seen == [3, 4, 5, 6, 7]
    assert torch.equal(weights(resumed), weights(whole))


# --- stopping ---


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_at_once_naming_step_examples_and_state(value, tmp_path):
    toy = Toy(noise=0)
    own = toy.losses_at

    def losses_at(step):
        losses = own(step)
        return Losses(losses.total * value, losses.tokens) if step == 5 else losses

    toy.losses_at = losses_at
    path = tmp_path / "c.pt"
    message = rf"the loss is {value} at step 6 of 8, examples n5a, n5b; last good state: {path}$"
    with pytest.raises(TrainingFailed, match=message):
        toy.train(checkpoint=kept(path), names_at=lambda step: [f"n{step}a", f"n{step}b"])
    assert toy.seen == list(range(6))
    state = torch.load(path, weights_only=True)
    assert state["step"] == 5
    assert all(tensor.isfinite().all() for tensor in state["parameters"].values())


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_gradient_that_is_not_finite_never_reaches_weights_or_checkpoint(clip, tmp_path):
    toy = Toy(noise=0)
    own = toy.losses_at

    def losses_at(step):
        losses = own(step)
        if step == 3:  # finite itself, but its slope is not
            losses = Losses(losses.total + (toy.model.bias.sum() - toy.model.bias.sum().detach()).abs().sqrt(), 1)
        return losses

    toy.losses_at = losses_at
    with pytest.raises(
        TrainingFailed, match="the gradient's norm is nan at step 4 of 8, examples x3; last good state: "
    ):
        toy.train(checkpoint=kept(tmp_path / "c.pt"), max_gradient_norm=clip, names_at=lambda step: [f"x{step}"])
    assert weights(toy).isfinite().all()
    assert torch.load(tmp_path / "c.pt", weights_only=True)["step"] == 3


def test_with_accumulation_the_failing_step_and_its_own_examples_are_named():
    toy = Toy(noise=0)
    own = toy.losses_at
    toy.losses_at = lambda step: Losses(own(step).total * (float("nan") if step == 7 else 1), 1)
    message = "step 3 of 4, examples x7; last good state: no checkpoint was saved"
    with pytest.raises(TrainingFailed, match=message):
        toy.train(4, accumulate=3, names_at=lambda step: [f"x{step}"])


def test_a_later_loss_of_a_step_that_is_not_finite_ends_the_training_before_its_weights_move():
    toy = Toy(noise=0)
    own, before = toy.losses_at, weights(toy)

    def losses_at(step):
        yield own(step)
        yield Losses(own(step).total * float("nan"), 0)

    toy.losses_at = losses_at
    with pytest.raises(TrainingFailed, match="the loss is nan at step 1 of 4, examples x0; last good state: no"):
        toy.train(4, names_at=lambda step: [f"x{step}"])
    assert torch.equal(weights(toy), before)


def test_sigterm_saves_and_exits_and_the_next_run_goes_on(tmp_path):
    whole = Toy(noise=0)
    whole.train()
    before = signal.getsignal(signal.SIGTERM)
    toy = Toy(noise=0)
    with pytest.raises(Interrupted, match="stopped by SIGTERM after step 3 of 8; run again to go on") as stopped:
        toy.train(
            checkpoint=kept(tmp_path / "c.pt", every=1e9),
            progress=At(3, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        )
    assert isinstance(stopped.value, SystemExit)
    assert stopped.value.code not in (0, None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert toy.seen == [0, 1, 2]
    resumed = Toy(noise=0)
    resumed.train(checkpoint=kept(tmp_path / "c.pt"))
    assert resumed.seen == [3, 4, 5, 6, 7]
    assert torch.equal(weights(resumed), weights(whole))


def test_the_signal_handler_comes_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        Toy().train(progress=At(1, kill))
    assert signal.getsignal(signal.SIGTERM) is before


# --- arithmetic ---


@pytest.mark.parametrize("clip", [None, 2.0])
def test_accumulating_equals_one_big_batch(clip):
    small, big = Toy(2, noise=0), Toy(6, noise=0)
    for one in (small, big):  # AdamW would hide a wrong scale of the gradient
        one.optimizer = torch.optim.SGD(one.model.parameters(), lr=0.05)
    found = small.train(4, accumulate=3, max_gradient_norm=clip)
    expected = big.train(4, max_gradient_norm=clip)
    torch.testing.assert_close(weights(small), weights(big), rtol=1e-5, atol=1e-6)
    for one, other in zip(found.history, expected.history, strict=True):
        assert one == pytest.approx(other, rel=1e-5)
    assert found.flop_tokens == expected.flop_tokens
    assert found.flops == expected.flops


def test_accumulating_outlives_a_backward_pass_that_reuses_its_memory():
    """A captured backward pass hands out the same memory each time, as this gradient hook does."""
    plain, reusing = Toy(2, noise=0), Toy(2, noise=0)
    places = {name: torch.empty_like(p) for name, p in reusing.model.named_parameters()}

    class Reuse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, inputs, weight, bias):
            ctx.save_for_backward(inputs)
            return inputs @ weight.T + bias

        @staticmethod
        def backward(ctx, gradient):
            (inputs,) = ctx.saved_tensors
            places["weight"].copy_(gradient.T @ inputs)
            places["bias"].copy_(gradient.sum(0))
            return None, places["weight"].detach(), places["bias"].detach()

    layer = reusing.model
    layer.forward = lambda inputs: Reuse.apply(inputs, layer.weight, layer.bias)
    for one in (plain, reusing):
        one.train(4, accumulate=3)
    torch.testing.assert_close(weights(reusing), weights(plain), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("in_turn", [False, True])
def test_gradients_outlive_a_later_forward_pass_that_writes_where_they_lie(in_turn):
    """Captured passes share their memory: an older one's activations may lie where a newer one's gradients are."""
    weight = torch.nn.Linear(3, 1, bias=False)
    arena = torch.zeros(2, 1, 3)
    seen = []

    class Pass(torch.autograd.Function):
        @staticmethod
        def forward(ctx, parameter, inputs, older):
            ctx.older = older
            ctx.save_for_backward(inputs)
            if older:
                arena[0].fill_(777)
            return (parameter * inputs).sum()

        @staticmethod
        def backward(ctx, gradient):
            place = arena[1 if ctx.older else 0]
            place.copy_(gradient * ctx.saved_tensors[0])
            return place.detach(), None, None

    def one_pass(number):
        return Losses(Pass.apply(weight.weight, torch.full((1, 3), 1.0 + number), number % 2 == 1), 1)

    def losses_at(number):
        return (one_pass(2 * number + part) for part in range(2)) if in_turn else one_pass(number)

    optimizer = torch.optim.SGD(weight.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(lambda *_: seen.append(weight.weight.grad.clone()))
    train(weight, optimizer, losses_at, 2, accumulate=1 if in_turn else 2)
    share = 1.0 if in_turn else 0.5
    assert [gradient[0, 0].item() for gradient in seen] == [share * (1 + 2), share * (3 + 4)]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("parts", [None, 1, 3])
def test_a_steps_autograd_graph_is_gone_before_the_next_pass(accumulate, parts):
    """A capture fails where leaves of an earlier pass live on, for these belong to the stream of that pass."""
    weight = torch.nn.Linear(2, 1)
    alive, totals = [], []

    def one_pass():
        alive.extend(earlier() is not None for earlier in totals)
        total = weight(torch.ones(1, 2)).square().sum()
        totals.append(weakref.ref(total))
        return Losses(total, 2)

    def losses_at(_number):
        return one_pass() if parts is None else (one_pass() for _ in range(parts))

    train(weight, torch.optim.SGD(weight.parameters(), lr=0.1), losses_at, 3, accumulate=accumulate)
    assert alive and not any(alive)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_losses_in_turn_are_their_sum(accumulate):
    whole, parted = Toy(noise=0), Toy(noise=0)
    own = parted.losses_at

    def losses_at(step):
        for share in (0.75, 0.25):
            losses = own(step)
            yield Losses(share * losses.total, losses.tokens if share > 0.5 else 0, {f"of {share}": 1.0})

    parted.losses_at = losses_at
    expected, found = whole.train(4, accumulate=accumulate), parted.train(4, accumulate=accumulate)
    torch.testing.assert_close(weights(parted), weights(whole))
    assert [row["loss"] for row in found.history] == pytest.approx([row["loss"] for row in expected.history])
    assert all(row["of 0.75"] == row["of 0.25"] == 1 for row in found.history)
    assert found.flop_tokens == expected.flop_tokens


def test_flops_are_counted_over_the_first_step_alone():
    one, many = Toy(noise=0), Toy(noise=0)
    first, all_ = one.train(1), many.train(8)
    assert first.flops == all_.flops > 0
    assert first.flop_tokens == all_.flop_tokens == 8


def test_what_comes_before_a_step_is_not_part_of_its_flops():
    plain, busy = Toy(noise=0), Toy(noise=0)
    costly = lambda _step: torch.randn(30, 30) @ torch.randn(30, 30)  # noqa: E731
    with FlopMeter() as meter:
        costly(0)
    assert meter.flops > 0
    assert busy.train(2, before_step=costly).flops == plain.train(2).flops


def test_the_history_and_progress_show_every_step():
    watch = At(0, kill)
    summary = Toy(noise=0).train(5, progress=watch)
    assert [entry["step"] for entry in summary.history] == [1, 2, 3, 4, 5]
    assert all(set(entry) == {"step", "loss", "error"} for entry in summary.history)
    assert [call[:2] for call in watch.calls] == [(step, 5) for step in range(1, 6)]
    assert summary.history[-1]["loss"] < summary.history[0]["loss"]
    assert summary.seconds > 0


def test_the_schedule_scales_each_groups_own_rate():
    toy = Toy(noise=0)
    toy.optimizer = torch.optim.SGD(
        [{"params": [toy.model.weight], "lr": 0.1}, {"params": [toy.model.bias], "lr": 0.2}]
    )
    seen = []
    toy.train(4, schedule=linear_decay, progress=At(9, kill), before_step=lambda _step: seen.append(
        [group["lr"] for group in toy.optimizer.param_groups]
    ))  # fmt: skip
    assert seen == [[0.1 * f, 0.2 * f] for f in (1.0, 0.75, 0.5, 0.25)]


# --- what steps make once ---


class Making(Toy):
    """Steps 1 and 3 make something once; each step counts itself, in state that is saved and in a buffer."""

    def __init__(self):
        super().__init__()
        self.model.register_buffer("mean", torch.zeros(()))
        self.extra, self.made = {"count": 0}, set()

    def losses_at(self, step: int) -> Losses:
        if step in {1, 3} - self.made:
            self.made.add(step)
            made_once.note()
        self.extra["count"] += 1
        self.model.mean += step
        found = super().losses_at(step)
        return Losses(found.total * (1 + self.model.mean / 100), found.tokens, {"count": float(self.extra["count"])})

    def train(self, steps: int = 8, **kwargs):
        return super().train(steps, extra=self.extra, **kwargs)


@pytest.mark.parametrize("stop", [2, 3, 4, 6])
def test_a_resumed_training_first_makes_what_was_made_and_nothing_else_comes_of_it(stop, tmp_path):
    torch.manual_seed(0)
    whole = Making()
    summary = whole.train()
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        Making().train(checkpoint=kept(tmp_path / "c.pt"), progress=At(stop, kill))
    torch.manual_seed(5)
    resumed, log = Making(), []
    found = resumed.train(checkpoint=kept(tmp_path / "c.pt", log=log.append))
    again = [step for step in (1, 3) if step < stop - 1]
    assert resumed.seen == [*again, *range(stop - 1, 8)]
    assert len(log) == 1 + bool(again) and (not again or f"going through {len(again)} earlier steps again" in log[-1])
    assert found.history == summary.history
    assert torch.equal(weights(resumed), weights(whole)) and torch.equal(resumed.model.mean, whole.model.mean)
    assert resumed.extra == whole.extra


def test_all_parts_of_a_step_are_gone_through_again(tmp_path):
    torch.manual_seed(0)
    whole = Making()
    whole.train(4, accumulate=2)
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        Making().train(4, accumulate=2, checkpoint=kept(tmp_path / "c.pt"), progress=At(3, kill))
    resumed = Making()
    resumed.train(4, accumulate=2, checkpoint=kept(tmp_path / "c.pt"))
    assert resumed.seen == [0, 1, 2, 3, *range(4, 8)]  # parts 1 and 3 make something: steps 0 and 1
    assert torch.equal(weights(resumed), weights(whole))


class Carrying(Making):
    """Its first step puts into its state what every later one needs; with ``fails`` a step is not to be run again."""

    def __init__(self, fails: bool = False):
        super().__init__()
        self.fails = fails

    def losses_at(self, step: int) -> Losses:
        if step == 0:
            self.extra["first"] = 1.0
        if self.fails and self.seen == [] and step == 1:
            raise RuntimeError("out of memory")
        return Losses(super().losses_at(step).total * self.extra["first"], 1)


def test_steps_gone_through_again_find_the_state_that_was_kept(tmp_path):
    torch.manual_seed(0)
    whole = Carrying()
    whole.train()
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        Carrying().train(checkpoint=kept(tmp_path / "c.pt"), progress=At(6, kill))
    resumed = Carrying()
    resumed.train(checkpoint=kept(tmp_path / "c.pt"))
    assert resumed.seen == [1, 3, 5, 6, 7] and torch.equal(weights(resumed), weights(whole))


def test_a_step_that_cannot_be_gone_through_again_stops_no_training(tmp_path):
    torch.manual_seed(0)
    whole, log = Carrying(), []
    whole.train()
    torch.manual_seed(0)
    with pytest.raises(KeyboardInterrupt):
        Carrying().train(checkpoint=kept(tmp_path / "c.pt"), progress=At(6, kill))
    resumed = Carrying(fails=True)
    resumed.train(checkpoint=kept(tmp_path / "c.pt", log=log.append))
    assert resumed.seen == [5, 6, 7] and torch.equal(weights(resumed), weights(whole))
    assert "step 2 cannot be gone through again (RuntimeError: out of memory); going on without" in log[-1]


def test_a_training_that_prepares_its_steps_is_resumed_without_that(tmp_path):
    def train_once(toy: Making, **options):
        prepared = set()
        losses_at = toy.losses_at

        def checked(step: int) -> Losses:
            assert step in prepared
            return losses_at(step)

        toy.losses_at = checked
        toy.train(before_step=prepared.add, **options)

    with pytest.raises(KeyboardInterrupt):
        train_once(Making(), checkpoint=kept(tmp_path / "c.pt"), progress=At(6, kill))
    resumed = Making()
    train_once(resumed, checkpoint=kept(tmp_path / "c.pt"))
    assert resumed.seen == [5, 6, 7]
