"""Whole attacks: independence of neighbours and batch size, memory, round trips, placement, resuming."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pandas as pd
import pytest
import torch

from latreft.attacks import gcg, random_token
from latreft.attacks.base import Found, attack_metrics, attacked, content_of, recompute, write_outcomes
from latreft.attacks.run import evaluating, run_attack
from latreft.engine.interface import predict
from latreft.engine.reference import FullSearch
from latreft.engine.reuse import ReuseEngine
from latreft.models.batch import Example, collate
from latreft.settings import SettingsError

MAX = 16


def same(one, two):
    """Equal outcomes; losses up to rounding, for a batch's size may move their last bits."""
    for a, b in zip(one, two, strict=True):
        exact = {key: value for key, value in asdict(a).items() if not key.startswith("loss")}
        assert exact == {key: value for key, value in asdict(b).items() if not key.startswith("loss")}
        for key in ("loss_before", "loss_after", "loss_in_search"):
            assert getattr(a, key) == pytest.approx(getattr(b, key), rel=1e-5)


@pytest.fixture(params=["gcg", "random_token"])
def settings(request, few_rounds, few_draws):
    return few_rounds if request.param == "gcg" else few_draws


@pytest.fixture
def attacking(engine, tokenizer):
    def run(defended, rows, settings, tokenizer=tokenizer, **kwargs):
        return run_attack(engine, defended, tokenizer, rows, "name", settings, MAX, 0, **kwargs)

    return run


@pytest.mark.parametrize("reft", [False, True])
def test_an_example_does_not_depend_on_neighbours_order_or_batch_size(build, attacking, rows, settings, reft):
    defended = build("llama", reft)
    whole = attacking(defended, rows, settings)
    same(whole, attacking(defended, rows.iloc[::-1], settings)[::-1])
    same(whole[2:3], attacking(defended, rows.iloc[2:3], settings))
    for size in (1, 100):
        same(whole, attacking(defended, rows, settings.model_copy(update={"batch_size": size})))
    assert len({outcome.attack_tokens for outcome in whole}) > 1


@pytest.mark.parametrize("reft", [False, True])
def test_running_out_of_memory_halves_the_batch_and_changes_nothing(
    build, attacking, rows, settings, reft, monkeypatch
):
    defended = build("gpt_neox", reft)
    whole = attacking(defended, rows, settings)
    real, sizes = FullSearch._prepared, []

    def small_memory(self, tokens):
        sizes.append(len(tokens))
        if len(tokens) > 2:
            raise torch.OutOfMemoryError("simulated")
        return real(self, tokens)

    monkeypatch.setattr(FullSearch, "_prepared", small_memory)
    same(whole, attacking(defended, rows, settings))
    assert max(sizes) > 2


@pytest.mark.parametrize("placement", ["suffix", "prefix"])
@pytest.mark.parametrize("lead", [False, True])
def test_the_judged_sequence_holds_the_attack_whole(
    build, engine, tokenizer, bos_tokenizer, attacking, rows, settings, placement, lead
):
    tokenizer = bos_tokenizer if lead else tokenizer
    defended = build("llama", True)
    settings = settings.model_copy(update={"placement": placement})
    for outcome, text in zip(attacking(defended, rows, settings, tokenizer), rows["text"], strict=True):
        content = content_of(tokenizer, text, MAX, 3)
        at = len(content) if placement == "suffix" else int(lead)
        sequence = attacked(content, at, outcome.attack_tokens)
        assert sequence[at : at + 3] == outcome.attack_tokens and len(sequence) == len(content) + 3 <= MAX
        logits = predict(engine, defended, collate([Example("x", sequence, outcome.label)]))
        assert outcome.prediction_after == logits.argmax().item()
        assert outcome.loss_after == pytest.approx(-logits.log_softmax(1)[0, outcome.label].item(), rel=1e-5)
        assert outcome.loss_after == pytest.approx(outcome.loss_in_search, rel=1e-5)
        clean = predict(engine, defended, collate([Example("x", content, 0)]))
        assert outcome.prediction_before == clean.argmax().item()
        assert outcome.attack_text == tokenizer.decode(outcome.attack_tokens)
        again = tokenizer.encode(tokenizer.decode(sequence))
        assert outcome.round_trips == (again == sequence)


def test_a_success_that_the_text_does_not_keep_is_reported(build, engine, tokenizer, attacking, rows):
    """Random tokens seldom survive: the re-tokenised text, of another length, is judged anew."""
    defended = build("llama")
    rows = pd.concat([rows.assign(id=rows["id"] + f"_{i}") for i in range(8)])
    settings = random_token.Settings(tokens=4, draws=30, batch_size=30)
    outcomes = attacking(defended, rows, settings)
    changed = [(o, t) for o, t in zip(outcomes, rows["text"], strict=True) if o.success and not o.round_trips]
    for outcome, text in changed:
        content = content_of(tokenizer, text, MAX, 4)
        again = tokenizer.encode(tokenizer.decode((*content, *outcome.attack_tokens)), MAX)
        logits = predict(engine, defended, collate([Example("x", again, 0)]))
        assert outcome.success_after_round_trip == (logits.argmax().item() != outcome.label)
    assert {outcome.success_after_round_trip for outcome, _ in changed} == {True, False}, "the test needs both"
    assert all(o.success_after_round_trip for o in outcomes if o.success and o.round_trips)
    assert not any(o.success_after_round_trip for o in outcomes if not o.success)
    metrics = attack_metrics(outcomes)
    assert metrics["asr_round_trip"].value < metrics["asr"].value


def test_required_round_trips_hold_for_every_success(build, attacking, rows):
    settings = gcg.Settings(tokens=3, rounds=4, top_k=60, candidates=40, start=" ", require_round_trip=True)
    outcomes = attacking(build("llama"), rows, settings)
    assert any(outcome.success for outcome in outcomes)
    assert all(outcome.round_trips and outcome.success_after_round_trip for outcome in outcomes if outcome.success)
    draws = attacking(build("llama"), rows, random_token.Settings(tokens=2, draws=40, require_round_trip=True))
    assert any(outcome.round_trips for outcome in draws)
    assert all(outcome.round_trips for outcome in draws if outcome.success)


def test_required_round_trips_without_a_survivor_neither_crash_nor_count(
    build, attacking, rows, settings, monkeypatch, caplog
):
    from latreft.attacks import run

    def none(_tokenizer, _content, _at, candidates):
        return torch.zeros(len(candidates), dtype=torch.bool)

    monkeypatch.setattr(run, "round_trips", none)
    outcomes = attacking(build("llama"), rows, settings.model_copy(update={"require_round_trip": True}))
    assert all(outcome.without_survivor == outcome.iterations > 0 for outcome in outcomes)
    assert not any(outcome.success for outcome in outcomes)
    assert "no candidate survived decode → encode for 5 of 5" in caplog.text


def test_content_of_a_bos_alone_can_be_attacked_and_no_tokens_at_all_is_an_error(
    build, tokenizer, bos_tokenizer, attacking, settings
):
    rows = pd.DataFrame({"id": ["void"], "text": [""], "label": [0]})
    for placement in ("suffix", "prefix"):
        placed = settings.model_copy(update={"placement": placement})
        (outcome,) = attacking(build("llama", True), rows, placed, bos_tokenizer)
        assert len(outcome.attack_tokens) == 3
    with pytest.raises(ValueError, match="example void has no tokens"):
        attacking(build(), rows, settings, tokenizer)


def test_the_model_is_in_evaluation_mode_and_comes_back_as_it_was(build, attacking, rows, settings):
    defended = build("llama", True)
    defended.classifier.train()
    defended.classifier.head.eval()
    modes = []
    handle = defended.classifier.base.register_forward_hook(lambda module, *_: modes.append(module.training))
    attacking(defended, rows.iloc[:1], settings)
    handle.remove()
    assert modes and not any(modes)
    assert defended.classifier.training and not defended.classifier.head.training
    parameters = [*defended.classifier.parameters(), *defended.reft.intervention.parameters()]
    assert all(parameter.grad is None for parameter in parameters)
    with pytest.raises(RuntimeError), evaluating(defended):
        raise RuntimeError
    assert defended.classifier.training


def test_rows_are_checked(build, attacking, rows, settings):
    with pytest.raises(SettingsError, match="'examples' .* value 9, but the attack split has 5"):
        attacking(build(), rows, settings.model_copy(update={"examples": 9}))
    with pytest.raises(ValueError, match="x0 is twice"):
        attacking(build(), pd.concat([rows, rows]), settings)
    with pytest.raises(ValueError, match="x0 has label 2"):
        attacking(build(), rows.assign(label=2), settings)
    assert [o.id for o in attacking(build(), rows, settings.model_copy(update={"examples": 2}))] == ["x0", "x1"]


def test_a_broken_model_is_named_by_example(build, attacking, rows, settings):
    defended = build()
    with torch.no_grad():
        defended.classifier.head.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="example x0 under"):
        attacking(defended, rows, settings)


def test_metrics_recompute_from_the_parquet(build, attacking, rows, settings, tmp_path):
    outcomes = attacking(build(), rows, settings)
    write_outcomes(outcomes, tmp_path / "o.parquet")
    assert recompute(pd.read_parquet(tmp_path / "o.parquet")) == attack_metrics(outcomes)


class Killed(Exception):
    pass


def killed_after(count):
    def progress(done, _total):
        if done == count:
            raise Killed

    return progress


@pytest.mark.parametrize("tear", ["none", "half a line", "no newline", "middle", "bytes"])
def test_a_killed_attack_goes_on_where_it_stopped(build, attacking, rows, settings, tmp_path, monkeypatch, tear):
    defended, path = build("llama", True), tmp_path / "run.jsonl"
    whole = attacking(defended, rows, settings)
    with pytest.raises(Killed):
        attacking(defended, rows, settings, journal=path, identity="m", progress=killed_after(3))
    text = path.read_bytes()
    lines = text.split(b"\n")
    torn = {
        "none": text,
        "half a line": text[:-40],
        "no newline": text[:-1],
        "middle": b"\n".join([lines[0], lines[1][:20], *lines[2:]]),
        "bytes": text + b'{"id": "\xe2\x82',
    }
    path.write_bytes(torn[tear])
    ran = []
    real = run_attack.__globals__["outcome_of"]
    monkeypatch.setitem(run_attack.__globals__, "outcome_of", lambda *a: ran.append(a[3].id) or real(*a))
    assert attacking(defended, rows, settings, journal=path, identity="m") == whole
    first = {"none": 3, "half a line": 2, "no newline": 3, "middle": 0, "bytes": 3}[tear]
    assert ran == [f"x{i}" for i in range(first, 5)]
    assert attacking(defended, rows, settings, journal=path, identity="m") == whole and len(ran) == 5 - first
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()[1:]] == list(rows["id"])


@pytest.mark.parametrize("change", ["identity", "settings", "text", "first line"])
def test_a_journal_of_another_run_is_discarded(build, attacking, rows, settings, tmp_path, caplog, change):
    defended, path = build(), tmp_path / "run.jsonl"
    attacking(defended, rows, settings, journal=path, identity="m")
    kept = path.read_text()
    path.write_text(kept[30:] if change == "first line" else kept)
    other = settings.model_copy(update={"tokens": 2}) if change == "settings" else settings
    changed = rows.assign(text=rows["text"] + "!") if change == "text" else rows
    again = attacking(defended, changed, other, journal=path, identity="n" if change == "identity" else "m")
    assert again == attacking(defended, changed, other)
    assert "journal of another run" in caplog.text


def test_a_journal_needs_an_identity(build, attacking, rows, settings, tmp_path):
    with pytest.raises(ValueError, match="identity"):
        attacking(build(), rows, settings, journal=tmp_path / "run.jsonl")


def test_a_search_that_disagrees_with_the_evaluation_is_noticed(build, attacking, rows, few_draws, monkeypatch, caplog):
    real = random_token.attack
    monkeypatch.setattr(random_token, "attack", lambda *a, **k: replace(real(*a, **k), loss=99.0))
    attacking(build(), rows, few_draws)
    assert "the search's loss is not the evaluated one" in caplog.text


# --- what an attack returns ---

ALLOWED = (70, 71, 72)
RIGHT = Found(ALLOWED, 0.5, 1, 1)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "None; right is a Found"),
        (ALLOWED, r"\(70, 71, 72\); right is a Found"),
        (replace(RIGHT, tokens=(70, 71)), r"2 tokens, \[70, 71\]; right are settings.tokens, 3"),
        (replace(RIGHT, tokens=(70, 71, 72, 73)), "4 tokens, .*; right are settings.tokens, 3"),
        (replace(RIGHT, tokens=()), r"0 tokens, \[\]; right are"),
        (replace(RIGHT, tokens=(70, 0, 72)), r"the tokens \[70, 0, 72\], of which \[0\] are not allowed"),
        (replace(RIGHT, tokens=(70, 302, 72)), r"of which \[302\] are not allowed"),  # a row beyond the tokenizer
        (replace(RIGHT, tokens=(70, 9999, -1)), r"of which \[9999, -1\] are not allowed"),
        (replace(RIGHT, tokens=[70, 71, 72]), "right is a tuple of 3 numbers of type int"),
        (replace(RIGHT, tokens=torch.tensor(ALLOWED)), "right is a tuple of 3 numbers of type int"),
        (replace(RIGHT, tokens=tuple(torch.tensor(ALLOWED))), "right is a tuple of 3 numbers of type int"),
        (replace(RIGHT, tokens=None), "the tokens None; right is"),
        (replace(RIGHT, loss=float("nan")), "the loss nan; right is a finite float"),
        (replace(RIGHT, loss=torch.tensor(0.5)), r"the loss tensor\(0.5000\); right is a finite float"),
        (replace(RIGHT, forwards=None), "forwards None; right is an int"),
        (replace(RIGHT, without_survivor=-1), "without_survivor -1; right is an int"),
    ],
)
@pytest.mark.parametrize("in_flight", [1, 4])
def test_what_is_not_the_attack_s_to_return_is_refused(
    build, tokenizer, rows, few_draws, monkeypatch, tmp_path, returned, said, in_flight
):
    """One line that names attack, example and what was returned; alone and in a group, and nothing of it is kept."""
    monkeypatch.setattr(random_token, "attack", lambda *_args, **_kwargs: returned)
    settings, journal = few_draws.model_copy(update={"in_flight": in_flight}), tmp_path / "journal.jsonl"
    with pytest.raises(ValueError, match=f"^example x\\d under random_token: the attack returned .*{said}") as error:
        run_attack(
            ReuseEngine(), build("llama"), tokenizer, rows, "name", settings, MAX, 0, journal=journal, identity="m"
        )
    assert "\n" not in str(error.value) and len(journal.read_text().splitlines()) == 1


def test_what_is_right_is_judged(build, attacking, rows, few_draws, monkeypatch):
    monkeypatch.setattr(random_token, "attack", lambda *_args, **_kwargs: RIGHT)
    assert {outcome.attack_tokens for outcome in attacking(build(), rows, few_draws)} == {ALLOWED}
