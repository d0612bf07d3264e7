"""Attack several examples at once: each search runs in a thread of its own, and their passes run together.

An attack is written for one example and asks its search for gradients and losses. Here every search waits until all
others have asked, too; then one pass answers them all. Who asks when does not depend on how threads are scheduled, so
the passes, and with them the results, are the same in every run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any, TypeVar

from torch import Tensor

from latreft.engine.interface import Engine, SearchGroup, TokenSearch

T = TypeVar("T")


class Abandoned(RuntimeError):
    """Another search of the group failed; its error is the one that is raised."""


class Questions:
    """Where the searches ask, and wait for answers."""

    def __init__(self, members: int):
        self.running = members
        self.asked: dict[int, tuple[str, Tensor]] = {}
        self.answers: dict[int, Any] = {}
        self.failed = False
        self.changed = Condition()

    def ask(self, member: int, what: str, rows: Tensor) -> Any:
        with self.changed:
            self.asked[member] = (what, rows)
            self.changed.notify_all()
            self.changed.wait_for(lambda: member in self.answers or self.failed)
            if self.failed:
                raise Abandoned
            return self.answers.pop(member)

    def leave(self, failed: bool) -> None:
        """A search has ended."""
        with self.changed:
            self.running -= 1
            self.failed |= failed
            self.changed.notify_all()

    def complete(self) -> dict[int, tuple[str, Tensor]]:
        """The questions of all searches that still run, once each has asked; none if all have ended or one failed."""
        with self.changed:
            self.changed.wait_for(lambda: self.failed or len(self.asked) == self.running)
            asked, self.asked = self.asked, {}
            return {} if self.failed else dict(sorted(asked.items()))

    def answer(self, answers: dict[int, Any]) -> None:
        with self.changed:
            self.answers.update(answers)
            self.changed.notify_all()


@dataclass(frozen=True)
class Member:
    """One example's search, as its attack sees it."""

    place: int
    questions: Questions

    def gradient(self, attack: Tensor) -> Tensor:
        found: Tensor = self.questions.ask(self.place, "gradients", attack)
        return found

    def losses(self, candidates: Tensor) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.questions.ask(self.place, "losses", candidates)
        return found


def answers_of(group: SearchGroup, asked: dict[int, tuple[str, Tensor]]) -> dict[int, Any]:
    """One pass a kind of question. Nobody is answered before all passes are done: a search that went on would disturb
    the capturing of the next pass."""
    answers: dict[int, Any] = {}
    for what in ("gradients", "losses"):
        wanted = {place: rows for place, (kind, rows) in asked.items() if kind == what}
        if wanted:
            answers |= getattr(group, what)(wanted)
    return answers


def run_all(
    engine: Engine,
    searches: Sequence[TokenSearch],
    attacks: Sequence[Callable[[TokenSearch], T]],
    tokens: int,
    size: int,
) -> list[T]:
    """The results of ``attacks`` of ``tokens`` tokens on the ``searches`` of one of the engine's groups, each its own.

    ``size`` is that which the groups were made for.
    """
    if len(attacks) == 1:
        return [attacks[0](searches[0])]
    return run_together(engine.group(searches, tokens, size), attacks)


def run_together(group: SearchGroup, attacks: Sequence[Callable[[TokenSearch], T]]) -> list[T]:
    """The results of ``attacks``, one for each member of ``group``; an error of one ends all and is raised."""
    questions = Questions(len(attacks))

    def run(place: int) -> T:
        failed = True
        try:
            found = attacks[place](Member(place, questions))
            failed = False
            return found
        finally:
            questions.leave(failed)

    with ThreadPoolExecutor(max_workers=len(attacks)) as pool:
        running = [pool.submit(run, place) for place in range(len(attacks))]
        try:
            while asked := questions.complete():
                questions.answer(answers_of(group, asked))
        except BaseException:
            questions.leave(failed=True)
            raise
    errors = [future.exception() for future in running]
    for error in errors:
        if error is not None and not isinstance(error, Abandoned):
            raise error
    return [future.result() for future in running]
