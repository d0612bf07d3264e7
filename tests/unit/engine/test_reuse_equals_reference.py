"""Exact prefix reuse gives the reference's numbers: losses, perturbations, gradients, chosen suffixes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from latreft.attacks import gcg, random_token
from latreft.engine.interface import Defended, predict
from latreft.engine.reference import ReferenceEngine, one_hot_gradient
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.interventions.reft import LoReFT
from latreft.interventions.surrogate import prune
from latreft.models.batch import Example, collate
from latreft.models.classifier import Classifier
from latreft.models.families import family

torch.set_num_threads(1)
LAYERS, WIDTH, NEURONS, VOCABULARY = 4, 32, 48, 120
FAMILIES = ["llama", "qwen2", "gpt_neox"]
ENGINES = [ReferenceEngine(), ReuseEngine()]


def classifier(name: str, dtype=torch.float64) -> Classifier:
    fam = family(name)
    shape = {"hidden_size": WIDTH, "intermediate_size": NEURONS, "num_attention_heads": 4, "num_hidden_layers": LAYERS}
    shape |= {"vocab_size": VOCABULARY, "max_position_embeddings": 256}
    if name != "gpt_neox":
        shape["num_key_value_heads"] = 2
    torch.manual_seed(0)
    model = Classifier(fam.build(fam.config(**shape), dtype=dtype), fam)
    model.initialise_head(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.requires_grad_(False).eval()


def batch_of(lengths):
    generator = torch.Generator().manual_seed(3)
    return collate(
        [
            Example(f"e{i}", tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()), i % 2)
            for i, length in enumerate(lengths)
        ]
    )


def surrogate_of(model: Classifier) -> Classifier:
    generator = torch.Generator().manual_seed(5)
    kept = [torch.randperm(NEURONS, generator=generator)[:count].sort().values for count in (40, 0, 17, 48)]
    return prune(model, kept)


@dataclass
class Step:
    loss: torch.Tensor
    delta: torch.Tensor
    gradients: list[torch.Tensor]


def reft_step(engine, model, batch, window, attack_layer, reft_layer, surrogate, order="perturb_then_reft") -> Step:
    """One LAT-ReFT step, written with the engine interface only."""
    reft = LoReFT(WIDTH, 4, start="random", seed=1, dtype=torch.float64)
    defended = Edits(reft=ReftEdit(reft_layer, reft), order=order)
    full = engine.prepare(model, batch, window)
    hidden = full.hidden(attack_layer)
    before = attack_layer < reft_layer or (attack_layer == reft_layer and order == "perturb_then_reft")
    base = hidden if before else None
    inner = full
    if surrogate != "none":
        inner = engine.prepare(surrogate_of(model), batch, window, model if surrogate == "window" else None)
    ball = Ball("l2_token", 0.5)
    start = ball.start(hidden.shape, "random", torch.Generator().manual_seed(2), hidden)
    delta = inner.ascend(defended, attack_layer, base, start, batch.labels, ball, steps=3, step_size=0.2)
    clean, attacked = full.logits_each(defended, defended.perturbed(attack_layer, delta, base))
    loss = F.cross_entropy(clean, batch.labels) + F.cross_entropy(attacked, batch.labels)
    return Step(loss.detach(), delta, list(torch.autograd.grad(loss, list(reft.parameters()))))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layers", [(1, 3), (2, 2), (3, 1), (4, 4), (1, 4)], ids=str)
@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
@pytest.mark.parametrize("lengths", [(17, 17), (19, 4, 11), (6, 6), (6, 3)], ids=str)
def test_a_reft_step_is_the_references(name, layers, surrogate, lengths):
    """Windows of 6 tokens: T > L and T = L, padded and not, some rows shorter than the window."""
    model, batch = classifier(name), batch_of(lengths)
    expected, found = (reft_step(engine, model, batch, 6, *layers, surrogate) for engine in ENGINES)
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.delta, expected.delta, rtol=0, atol=1e-10)
    for one, other in zip(found.gradients, expected.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert max(gradient.abs().max() for gradient in expected.gradients) > 1e-4


@pytest.mark.parametrize("name", FAMILIES)
def test_at_one_layer_both_orders_are_the_references(name):
    model, batch = classifier(name), batch_of((15, 9))
    steps = [reft_step(engine, model, batch, 6, 2, 2, "none", "reft_then_perturb") for engine in ENGINES]
    torch.testing.assert_close(steps[1].loss, steps[0].loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(steps[1].gradients, steps[0].gradients, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_training_all_weights_is_the_references(name):
    """LAT: the inner passes share the prefix, the outer ones run in full and give every weight its gradient."""
    results = []
    for engine in ENGINES:
        model, batch = classifier(name).requires_grad_(True), batch_of((15, 9, 15))
        prepared = engine.prepare(model, batch, 6)
        ball = Ball("l2_window", 1.0)
        shape = torch.Size((3, 6, WIDTH))
        start = ball.start(shape, "random", torch.Generator().manual_seed(2), model.head.weight)
        delta = prepared.ascend(Edits(), 2, None, start, batch.labels, ball, steps=4, step_size=0.2)
        clean, attacked = prepared.training_logits(Edits(), Edits().perturbed(2, delta))
        (F.cross_entropy(clean, batch.labels) + F.cross_entropy(attacked, batch.labels)).backward()
        results.append((delta, [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(results[1][0], results[0][0], rtol=0, atol=1e-10)
    torch.testing.assert_close(results[1][1], results[0][1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("layer", range(LAYERS + 1))
def test_hidden_states_are_the_references(name, layer):
    model, batch = classifier(name), batch_of((15, 4))
    keep = batch.mask[:, -6:]
    for prefix_of in (None, model):
        target = model if prefix_of is None else surrogate_of(model)
        expected, found = (engine.prepare(target, batch, 6, prefix_of).hidden(layer) for engine in ENGINES)
        torch.testing.assert_close(found[keep], expected[keep], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_predictions_of_a_defended_model_are_the_references(name):
    model, batch = classifier(name), batch_of((15, 4, 9))
    defended = Defended(model, ReftEdit(2, LoReFT(WIDTH, 4, start="random", dtype=torch.float64)), 6)
    expected, found = (predict(engine, defended, batch) for engine in ENGINES)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def defended_of(model, kind):
    dtype = model.dtype
    if kind == "undefended":
        return Defended(model)
    window = {"window_1": 1, "window_6": 6, "window_20": 20, "window_200": 200}[kind]
    return Defended(model, ReftEdit(2, LoReFT(WIDTH, 4, start="random", seed=4, dtype=dtype)), window)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("at", ["suffix", "prefix", "inside"])
@pytest.mark.parametrize("kind", ["undefended", "window_1", "window_6", "window_20", "window_200"])
def test_candidate_losses_and_gradients_are_the_references(name, at, kind):
    defended = defended_of(classifier(name), kind)
    content = tuple(range(3, 27))
    place = {"suffix": len(content), "prefix": 1, "inside": 20}[at]
    searches = [engine.search(defended, content, place, 1, 4) for engine in ENGINES]
    candidates = torch.randint(3, VOCABULARY, (11, 5), generator=torch.Generator().manual_seed(1))
    expected, found = (search.losses(candidates) for search in searches)
    torch.testing.assert_close(found[1], expected[1], rtol=0, atol=1e-10)
    torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-6)
    expected, found = (search.gradient(candidates[0]) for search in searches)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["undefended", "window_20"])
@pytest.mark.parametrize("name", FAMILIES)
def test_whole_attacks_choose_the_references_suffixes(name, kind):
    defended = defended_of(classifier(name, torch.float32), kind)
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    greedy = gcg.Settings(rounds=4, top_k=24, candidates=16, tokens=6, start="random")
    drawn = random_token.Settings(draws=30, tokens=6, batch_size=8)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        length = int(torch.randint(4, 40, (1,), generator=generator))
        content = tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())
        for module, settings in ((gcg, greedy), (random_token, drawn)):
            found = [
                module.attack(
                    engine.search(defended, content, length, seed % 2, settings.batch_size),
                    label=seed % 2, allowed=allowed, encode=lambda text: (5,),
                    generator=torch.Generator().manual_seed(seed), settings=settings, survives=None,
                ).tokens
                for engine in ENGINES
            ]  # fmt: skip
            assert found[0] == found[1], (seed, module.__name__)


def test_weights_that_changed_after_preparing_are_refused():
    model, batch = classifier("llama").requires_grad_(True), batch_of((12, 12))
    prepared = ReuseEngine().prepare(model, batch, 6)
    prepared.logits(Edits())
    with torch.no_grad():
        model.head.weight.add_(1.0)
    with pytest.raises(RuntimeError, match="weights changed after this batch was prepared"):
        prepared.logits(Edits())


def test_a_window_pass_touches_window_tokens_only():
    """The work is that of L tokens: no module of the blocks sees more rows than B · L."""
    model, batch = classifier("llama"), batch_of((40, 40))
    prepared = ReuseEngine().prepare(model, batch, 6)
    hidden = prepared.hidden(2)
    seen: list[tuple[int, int]] = []
    for index, block in enumerate(model.family.block_list(model.base)):
        block.mlp.register_forward_pre_hook(
            lambda _m, inputs, index=index: seen.append((index, inputs[0].shape[:2].numel()))
        )
    prepared.logits(Edits().perturbed(2, torch.zeros_like(hidden), hidden))
    assert seen == [(2, 12), (3, 12)]


def test_blocks_traced_for_compilation_give_the_same_step():
    """Traced and differentiated as for a GPU, run by the eager kernels; one compilation must serve all blocks."""
    import torch._dynamo

    model, batch = classifier("llama"), batch_of((19, 4, 11))
    expected = reft_step(ReuseEngine(), model, batch, 6, 1, 3, "none")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    traced = torch.compile(type(model.family.block_list(model.base)[0]).forward, backend="aot_eager", fullgraph=True)
    with model.blocks_run_by(traced):
        found = reft_step(ReuseEngine(), model, batch, 6, 1, 3, "none")
    torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
    torch.testing.assert_close(found.gradients, expected.gradients, rtol=0, atol=1e-10)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 8
    torch._dynamo.reset()


@pytest.mark.parametrize(("surrogate", "most"), [("none", 4), ("exact", 9), ("window", 6)])
def test_compiled_inner_passes_give_the_same_step_and_few_variants_serve_all_lengths_and_widths(
    traced_inner, surrogate, most
):
    engine, variants = traced_inner
    model = classifier("llama")
    for lengths in ((19, 4, 11), (30, 4, 11), (45, 4, 11)):
        expected = reft_step(ReuseEngine(), model, batch_of(lengths), 6, 1, 3, surrogate)
        found = reft_step(engine, model, batch_of(lengths), 6, 1, 3, surrogate)
        torch.testing.assert_close(found.loss, expected.loss, rtol=0, atol=1e-10)
        torch.testing.assert_close(found.gradients, expected.gradients, rtol=0, atol=1e-10)
    assert 2 <= variants() <= most  # prefix passes and steps of PGD: the first length or width, and all others


def test_compiled_inner_passes_ask_for_no_weights_gradient(traced_inner):
    """A backward pass that gave them would be another variant, and most of a step's work."""
    engine, variants = traced_inner
    model, batch, found = classifier("llama"), batch_of((19, 4, 11)), []
    for trained in (False, True):
        model.requires_grad_(trained)
        start = torch.zeros(3, 6, WIDTH, dtype=torch.float64)
        for one in (engine, ReuseEngine()):
            prepared = one.prepare(model, batch, 6)
            ball = Ball("l2_token", 0.5)
            found.append(prepared.ascend(Edits(), 1, None, start, batch.labels, ball, steps=2, step_size=0.1))
        assert all(parameter.requires_grad == trained for parameter in model.parameters())
    assert variants() == 2  # the prefix pass and a step of PGD
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=0, atol=1e-10)


def test_gradients_of_tokens_do_not_tie_in_mixed_precision():
    generator = torch.Generator().manual_seed(0)
    gradient, embedding = torch.randn(3, 64, generator=generator), torch.randn(500, 64, generator=generator)
    expected = gradient @ embedding.T
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        found = one_hot_gradient(gradient, embedding)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
