"""Attack the examples of a split: search, then clean pass, attacked pass, re-tokenised pass."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from latreft.attacks.base import (
    AttackSettings,
    Found,
    Outcome,
    allowed_tokens,
    attacked,
    content_of,
    example_generator,
    highest,
    place,
    predictions,
    round_trips,
)
from latreft.attacks.journal import Journal
from latreft.attacks.registry import attack_of
from latreft.attacks.together import run_all
from latreft.engine.interface import Defended, Engine, TokenSearch, predict
from latreft.files import fingerprint
from latreft.models.batch import Example, collate
from latreft.models.tokenisation import TextTokenizer
from latreft.settings import SettingsError

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


def run_attack(
    engine: Engine,
    defended: Defended,
    tokenizer: TextTokenizer,
    rows: pd.DataFrame,
    name: str,
    settings: AttackSettings,
    max_length: int,
    seed: int,
    *,
    progress: Callable[[int, int], None] | None = None,
    journal: str | Path | None = None,
    identity: Any = None,
) -> list[Outcome]:
    """Attack the first ``settings.examples`` of ``rows`` (columns id, text, label) and return their outcomes in order.

    ``name`` is the attack's name in the configuration, ``max_length`` the classifier's (tokens, special and attacked
    ones included). With ``journal``, finished examples are kept in that file and not attacked again; ``identity``
    (JSON-able: checksums of the attacked model and its tokenizer) then says what the journal belongs to.
    ``progress`` is called with the number of finished examples and of all.
    """
    chosen = _chosen(rows, settings)
    if journal is not None and identity is None:
        raise ValueError("a journal needs the identity of what is attacked: a changed model must not continue it")
    run = [engine.name, name, settings.model_dump(mode="json"), max_length, seed, identity, chosen]
    kept = None if journal is None else Journal(journal, fingerprint(run))
    allowed = allowed_tokens(tokenizer, defended.classifier.vocabulary)
    examples = [
        Example(id_, content_of(tokenizer, text, max_length, settings.tokens), label) for id_, text, label in chosen
    ]
    generators = [example_generator(seed, name, example.id) for example in examples]
    done = kept.done if kept else {}
    found: dict[int, Outcome] = {i: done[one.id] for i, one in enumerate(examples) if one.id in done}
    with evaluating(defended):
        for group in groups_of(engine, defended, tokenizer, examples, settings):
            if all(i in found for i in group):
                continue
            results = find(
                engine,
                defended,
                tokenizer,
                [examples[i] for i in group],
                settings,
                allowed,
                [generators[i] for i in group],
            )
            for i, result in zip(group, results, strict=True):
                found[i] = outcome_of(engine, defended, tokenizer, examples[i], settings, max_length, result)
                if kept and examples[i].id not in done:
                    kept.append(found[i])
            if progress:
                progress(len(found), len(chosen))
    outcomes = [found[i] for i in range(len(examples))]
    _warn(outcomes, name)
    return outcomes


def groups_of(
    engine: Engine, defended: Defended, tokenizer: TextTokenizer, examples: Sequence[Example], settings: AttackSettings
) -> list[list[int]]:
    """Which of ``examples`` the engine attacks together: their indices, each once.

    Groups are those of all examples, whichever of them are done already: a resumed run makes the same passes.
    """
    places = [(len(one.tokens), place(tokenizer, one.tokens, settings.placement)) for one in examples]
    return engine.groups(defended, places, settings.in_flight)


def outcome_of(
    engine: Engine,
    defended: Defended,
    tokenizer: TextTokenizer,
    example: Example,
    settings: AttackSettings,
    max_length: int,
    found: Found,
) -> Outcome:
    """What a search's tokens do to an example, judged by the pass that measures accuracy."""
    try:
        before = judge(engine, defended, example.tokens, example)
        at = place(tokenizer, example.tokens, settings.placement)
        sequence = attacked(example.tokens, at, found.tokens)
        after = judge(engine, defended, sequence, example)
        survived = bool(round_trips(tokenizer, example.tokens, at, torch.tensor([found.tokens]))[0])
        flipped = before.prediction == example.label != after.prediction
        success = flipped and (survived or not settings.require_round_trip)
        lasting = success
        if success and not survived:
            again = tokenizer.encode(tokenizer.decode(sequence), max_length)
            lasting = bool(again) and judge(engine, defended, again, example).prediction != example.label
    except FloatingPointError as error:
        raise FloatingPointError(f"example {example.id} under {settings.kind}: {error}") from error
    return Outcome(
        id=example.id,
        label=example.label,
        prediction_before=before.prediction,
        prediction_after=after.prediction,
        loss_before=before.loss,
        loss_after=after.loss,
        loss_in_search=found.loss,
        attack_tokens=found.tokens,
        attack_text=tokenizer.decode(found.tokens),
        round_trips=survived,
        success=success,
        success_after_round_trip=lasting,
        iterations=found.iterations,
        forwards=found.forwards,
        backwards=found.backwards,
        without_survivor=found.without_survivor,
    )


def find(
    engine: Engine,
    defended: Defended,
    tokenizer: TextTokenizer,
    examples: Sequence[Example],
    settings: AttackSettings,
    allowed: Tensor,
    generators: Sequence[torch.Generator],
) -> list[Found]:
    """The searches alone, for methods that train on what they find: of one example, or of a group attacked together.

    The model should be in evaluation mode. Raises ``ValueError`` for a result that is not what it has to be.
    """
    places = [place(tokenizer, example.tokens, settings.placement) for example in examples]
    searches = [
        engine.search(defended, example.tokens, at, example.label, settings.batch_size)
        for example, at in zip(examples, places, strict=True)
    ]

    def attack_on(example: Example, at: int, generator: torch.Generator, search: TokenSearch) -> Found:
        def survives(rows: Tensor) -> Tensor:
            return round_trips(tokenizer, example.tokens, at, rows)

        try:
            found = attack_of(settings)(
                search,
                label=example.label,
                allowed=allowed,
                encode=lambda text: tuple(token for token in tokenizer.encode(text) if token not in tokenizer.special),
                generator=generator,
                settings=settings,
                survives=survives if settings.require_round_trip else None,
            )
        except FloatingPointError as error:
            raise FloatingPointError(f"example {example.id} under {settings.kind}: {error}") from error
        fault = fault_of(found, settings.tokens, allowed)
        if fault is not None:
            raise ValueError(f"example {example.id} under {settings.kind}: the attack returned {fault}")
        return found

    attacks = [partial(attack_on, *own) for own in zip(examples, places, generators, strict=True)]
    return run_all(engine, searches, attacks, settings.tokens, settings.in_flight)


def fault_of(found: object, count: int, allowed: Tensor) -> str | None:
    """What is wrong with an attack's result, and what would be right; None for one that can be judged.

    Fewer tokens, or special ones, would be another attack than its record says, and more would be cut off.
    """
    if not isinstance(found, Found):
        return f"{found!r:.200}; right is a Found"
    tokens = found.tokens
    if not isinstance(tokens, tuple) or any(type(token) is not int for token in tokens):
        return f"the tokens {tokens!r:.200}; right is a tuple of {count} numbers of type int"
    if len(tokens) != count:
        return f"{len(tokens)} tokens, {list(tokens)!r:.200}; right are settings.tokens, {count}"
    stray = [token for token in tokens if not (0 <= token < len(allowed) and allowed[token])]
    if stray:
        return f"the tokens {list(tokens)!r:.200}, of which {stray!r:.200} are not allowed"
    if not isinstance(found.loss, float) or not math.isfinite(found.loss):
        return f"the loss {found.loss!r:.200}; right is a finite float"
    for name in ("iterations", "forwards", "backwards", "without_survivor"):
        value = getattr(found, name)
        if type(value) is not int or value < 0:
            return f"{name} {value!r:.200}; right is an int of 0 or more"
    return None


class Verdict(NamedTuple):
    """A defended classifier's class of a sequence and its cross-entropy (nats) of the true label."""

    prediction: int
    loss: float


def judge(engine: Engine, defended: Defended, tokens: Sequence[int], example: Example) -> Verdict:
    """The verdict on ``tokens`` as a batch of one."""
    batch = collate([Example(example.id, tuple(tokens), example.label)]).to(defended.classifier.device)
    logits = predict(engine, defended, batch)
    loss = F.cross_entropy(logits.float(), batch.labels)
    highest(loss[None])  # refuses NaN
    return Verdict(int(predictions(logits)), loss.item())


@contextmanager
def evaluating(defended: Defended) -> Iterator[None]:
    """Within the context the classifier and its edit are in evaluation mode; each module's own mode comes back."""
    parts: list[nn.Module] = [defended.classifier]
    if defended.reft is not None and isinstance(defended.reft.intervention, nn.Module):
        parts.append(defended.reft.intervention)
    modes = [(module, module.training) for part in parts for module in part.modules()]
    try:
        for part in parts:
            part.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training


def _chosen(rows: pd.DataFrame, settings: AttackSettings) -> list[tuple[str, str, int]]:
    """The rows to attack as (id, text, label); too few, double ids and other labels than 0 and 1 are errors."""
    if settings.examples is not None and settings.examples > len(rows):
        raise SettingsError(
            f"key 'examples' of the attack has value {settings.examples}, but the {settings.split} split has {len(rows)}; "
            "lower it, or leave it out to attack all"
        )
    wanted = rows.iloc[: settings.examples]
    chosen = [
        (str(id_), str(text), int(label))
        for id_, text, label in zip(wanted["id"], wanted["text"], wanted["label"], strict=True)
    ]
    seen: set[str] = set()
    for id_, _text, label in chosen:
        if id_ in seen:
            raise ValueError(f"example {id_} is twice in the {settings.split} split; an example's id must be its own")
        if label not in (0, 1):
            raise ValueError(f"example {id_} has label {label}; labels are 0 and 1")
        seen.add(id_)
    return chosen


def _warn(outcomes: Sequence[Outcome], name: str) -> None:
    """Say what would make the rates misleading."""
    fruitless = sum(outcome.without_survivor == outcome.iterations > 0 for outcome in outcomes)
    if fruitless:
        log.warning(
            "%s: no candidate survived decode → encode for %d of %d examples, which were not really attacked; "
            "choose a start that survives, as ' !'", name, fruitless, len(outcomes),
        )  # fmt: skip
    apart = [o for o in outcomes if abs(o.loss_in_search - o.loss_after) > 0.1 * (1 + o.loss_after)]
    if apart:
        log.warning(
            "%s: for %d of %d examples the search's loss is not the evaluated one (example %s: %.4f and %.4f)",
            name, len(apart), len(outcomes), apart[0].id, apart[0].loss_in_search, apart[0].loss_after,
        )  # fmt: skip
