"""The one training loop: resumable, deterministic, stopped by the first loss or gradient that is not a number."""

from __future__ import annotations

import copy
import math
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from latreft import made_once
from latreft.cost.measured import FlopMeter
from latreft.files import atomic, remove_with_empty_folders

Schedule = Callable[[int, int], float]


def constant(_step: int, _total: int) -> float:
    """Factor of the learning rate: always 1."""
    return 1.0


def linear_decay(step: int, total: int) -> float:
    """Factor of the learning rate: from 1 down to 0, no warm-up [A.1]."""
    return max(0.0, 1.0 - step / total)


class TrainingFailed(RuntimeError):
    """Training stopped because a loss or a gradient was not finite. The message says where and what to go on from."""


class Interrupted(SystemExit):
    """A termination signal came; the state has been saved, and the next run goes on from it."""


class Progress(Protocol):
    """Where a long step reports to; see :mod:`latreft.progress`."""

    def update(self, done: int, total: int, values: Mapping[str, float]) -> None: ...


@dataclass
class Checkpoint:
    """A training state on disk, outside the declared outputs.

    ``fingerprint`` says what is being trained (settings, code, data, start). A state with another fingerprint, or one
    that cannot be read, is not used.
    """

    path: Path
    fingerprint: str
    every_seconds: float = 300.0
    log: Callable[[str], None] = print
    _last: float = field(default_factory=time.monotonic)

    def load(self) -> dict[str, Any] | None:
        if not self.path.is_file():
            return None
        try:
            state = torch.load(self.path, map_location="cpu", weights_only=True)
        except Exception as error:
            self.log(f"{self.path} cannot be read ({type(error).__name__}); starting from the beginning")
            return None
        if not isinstance(state, dict) or state.get("fingerprint") != self.fingerprint:
            self.log(f"{self.path} is of other settings, code or data; starting from the beginning")
            return None
        self.log(f"resuming at step {state['step']} from {self.path}")
        return state

    def due(self) -> bool:
        return time.monotonic() - self._last >= self.every_seconds

    def save(self, state: dict[str, Any]) -> None:
        with atomic(self.path) as temporary:
            torch.save(state | {"fingerprint": self.fingerprint}, temporary)
        self._last = time.monotonic()

    def remove(self) -> None:
        """Remove the file, and the folders that it leaves empty."""
        remove_with_empty_folders(self.path)


@contextmanager
def _termination() -> Iterator[Callable[[], bool]]:
    """Within the context SIGTERM is noted instead of obeyed; the yielded function tells whether it came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    previous = signal.signal(signal.SIGTERM, lambda number, _frame: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, previous)


@dataclass(frozen=True)
class Losses:
    """What a step returns: the loss to descend on, the tokens it went over (B × T), and values to report.

    A step may give several in turn, whose sum is its loss: each one's graph is gone before the next is asked for, so
    that they never lie in memory together. Their tokens add up.
    """

    total: Tensor
    tokens: int
    values: dict[str, float] = field(default_factory=dict)


def in_turn(losses: Losses | Iterator[Losses]) -> Iterator[tuple[Losses, bool]]:
    """The losses of a step, each with whether it may be one of several."""
    if isinstance(losses, Losses):
        yield losses, False
    else:
        for one in losses:
            yield one, True
            del one  # before the next is made


@dataclass(frozen=True)
class Summary:
    """What a training left behind besides its weights.

    ``flops`` were counted over the first step, of ``flop_tokens`` tokens, padding included; ``seconds`` are those of
    all runs that had a part in the training.
    """

    steps: int
    history: list[dict[str, float]]
    seconds: float
    flops: int
    flop_tokens: int


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _restore_random(state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def own_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Copy gradients to memory of their own: a captured backward pass gives the same memory each time, into which
    graphs captured earlier may write."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.clone()


def _rehearse(
    optimizer: torch.optim.Optimizer,
    losses_at: Callable[[int], Losses | Iterator[Losses]],
    steps: Sequence[int],
    accumulate: int,
    extra: dict[str, Any],
    log: Callable[[str], None],
) -> None:
    """Run the passes of steps, so that what they make once is made; what else they change is the caller's to put back.

    ``extra`` is what the method kept when it was stopped. A step that cannot be run again ends the rehearsal, not the
    training.
    """
    if steps:
        log(f"going through {len(steps)} earlier steps again, for what they compiled and captured")
    kept = copy.deepcopy(extra)
    for step in steps:
        extra.clear()
        extra.update(copy.deepcopy(kept))
        try:
            for part in range(step * accumulate, (step + 1) * accumulate):
                for losses, _ in in_turn(losses_at(part)):
                    losses.total.backward()
                    optimizer.zero_grad(set_to_none=True)
                    del losses
        except Exception as error:
            log(
                f"step {step + 1} cannot be gone through again ({type(error).__name__}: {error}); going on without: the last "
                "bits may differ from those of an uninterrupted run"
            )
            break
    optimizer.zero_grad(set_to_none=True)


def train(
    trained: nn.Module,
    optimizer: torch.optim.Optimizer,
    losses_at: Callable[[int], Losses | Iterator[Losses]],
    total_steps: int,
    *,
    checkpoint: Checkpoint | None = None,
    progress: Progress | None = None,
    schedule: Schedule = constant,
    max_gradient_norm: float | None = None,
    accumulate: int = 1,
    names_at: Callable[[int], Sequence[str]] | None = None,
    before_step: Callable[[int], object] | None = None,
    extra: dict[str, Any] | None = None,
) -> Summary:
    """Descend for ``total_steps`` on ``losses_at(step)``.

    ``before_step`` is called before each step; what it does is not part of the FLOPs counted over the first one, and
    where it returns True (it has done something long), the state is saved at once.
    ``trained`` holds the parameters of ``optimizer`` (others in it must be frozen: they are not saved). With
    ``accumulate`` = n, ``losses_at`` is called n times a step, with n·step + i, and gradients are averaged. ``extra``
    is a method's own state; it is saved and restored in place. Raises :class:`TrainingFailed` at the first loss or
    gradient that is not finite, before it reaches weights or checkpoint, and :class:`Interrupted` after SIGTERM, the
    state saved.

    What steps make once (:mod:`latreft.made_once`) decides the last bits of later ones. So a resumed training first goes
    through the steps in which something was made, their losses unused, and only then takes up its state: ``losses_at``
    must give such a step the shapes that it had, from nothing but the step (``extra`` is what it was at the end). One
    that fails then is left, with a line in the log. One with ``before_step`` cannot do so, and
    its captured or compiled passes need not be those of an uninterrupted run.
    """
    parameters = {name: p for name, p in trained.named_parameters() if p.requires_grad}
    base_rates = [group["lr"] for group in optimizer.param_groups]
    history: list[dict[str, float]] = []
    made_at: list[int] = []
    first, flops, flop_tokens = 0, 0, 0
    started = time.monotonic()
    extra = {} if extra is None else extra

    trained.train(False)
    state = checkpoint.load() if checkpoint is not None else None
    if checkpoint is not None and state is not None:
        started -= state["seconds"]
        made_at = state["made_at"]
        if before_step is None:
            extra.update(state["extra"])
            _rehearse(optimizer, losses_at, made_at, accumulate, extra, checkpoint.log)
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(state["parameters"][name])
            for name, buffer in trained.named_buffers():
                buffer.copy_(state["buffers"][name])
        optimizer.load_state_dict(state["optimizer"])
        history, first = state["history"], state["step"]
        flops, flop_tokens = state["flops"], state["flop_tokens"]
        extra.clear()
        extra.update(state["extra"])
        _restore_random(state["random"])

    def save(step: int) -> None:
        if checkpoint is not None:
            checkpoint.save(
                {
                    "parameters": {name: p.detach().cpu() for name, p in parameters.items()},
                    "buffers": {name: buffer.detach().cpu() for name, buffer in trained.named_buffers()},
                    "optimizer": optimizer.state_dict(),
                    "random": _random_state(),
                    "history": history,
                    "made_at": made_at,
                    "step": step,
                    "seconds": time.monotonic() - started,
                    "flops": flops,
                    "flop_tokens": flop_tokens,
                    "extra": extra,
                }
            )

    def fail(what: str, value: float, step: int, parts: Sequence[int]) -> None:
        seen = [] if names_at is None else [name for part in parts for name in names_at(step * accumulate + part)]
        names = f", examples {', '.join(seen)}" if seen else ""
        kept = "no checkpoint was saved" if checkpoint is None or not checkpoint.path.is_file() else checkpoint.path
        raise TrainingFailed(
            f"the {what} is {value} at step {step + 1} of {total_steps}{names}; last good state: {kept}"
        )

    with _termination() as terminated:
        for step in range(first, total_steps):
            for group, rate in zip(optimizer.param_groups, base_rates, strict=True):
                group["lr"] = rate * schedule(step, total_steps)
            optimizer.zero_grad(set_to_none=True)
            if before_step is not None and before_step(step) is True:
                save(step)
            values: dict[str, float] = {}
            made = made_once.count()
            with FlopMeter() if step == 0 else nullcontext() as meter:
                for part in range(accumulate):
                    for losses, several in in_turn(losses_at(step * accumulate + part)):
                        value = losses.total.item()
                        if not math.isfinite(value):
                            fail("loss", value, step, [part])
                        (losses.total / accumulate).backward()
                        if not values and (several or accumulate > 1):  # the first, with others behind it
                            own_gradients(parameters.values())
                        for name, item in {"loss": value, **losses.values}.items():
                            values[name] = values.get(name, 0.0) + item / accumulate
                        flop_tokens += losses.tokens if step == 0 else 0
                        # With the loss goes its autograd graph. Kept, its leaves would stay on this stream, and the next
                        # pass could not be captured on another one.
                        del losses
            if meter is not None:
                flops = meter.flops
            norm = nn.utils.get_total_norm([p.grad for p in parameters.values() if p.grad is not None])
            if not norm.isfinite():
                fail("gradient's norm", norm.item(), step, range(accumulate))
            if max_gradient_norm is not None:
                nn.utils.clip_grads_with_norm_(parameters.values(), max_gradient_norm, norm)
            optimizer.step()
            if made_once.count() > made:
                made_at.append(step)
            history.append({"step": step + 1, **values})
            if progress is not None:
                progress.update(step + 1, total_steps, values)
            if terminated():
                save(step + 1)
                raise Interrupted(f"stopped by SIGTERM after step {step + 1} of {total_steps}; run again to go on")
            if checkpoint is not None and checkpoint.due():
                save(step + 1)
    return Summary(total_steps, history, time.monotonic() - started, flops, flop_tokens)
