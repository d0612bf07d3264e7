"""On a GPU: captured passes give the eager ones' numbers, and a seed gives the same defense bit for bit.

Run with ``pytest tests/gpu -s`` on a machine with a CUDA device; skipped elsewhere.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import pytest
import torch
from torch.nn import functional as F
from unit.defenses.arms import StopAt, checkpoint

from latreft import determinism
from latreft.attacks import gcg
from latreft.attacks.together import run_all
from latreft.defenses import cat, lat
from latreft.defenses.base import Training
from latreft.engine import prefix
from latreft.engine.graphs import capture
from latreft.engine.interface import Defended
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.interventions.edits import Edits, ReftEdit
from latreft.interventions.pgd import Ball
from latreft.interventions.reft import LoReFT
from latreft.interventions.surrogate import prune
from latreft.models import attention
from latreft.models.batch import Example, collate
from latreft.models.classifier import Classifier
from latreft.models.families import family
from latreft.training import Losses
from latreft.training import train as run_training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WIDTH, LAYERS, NEURONS, VOCABULARY, WINDOW = 256, 5, 512, 1000, 20


@pytest.fixture(autouse=True)
def deterministic_kernels():
    determinism.deterministic()
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    determinism.deterministic(False)


def classifier(name: str, dtype: torch.dtype) -> Classifier:
    fam = family(name)
    shape = {"hidden_size": WIDTH, "intermediate_size": NEURONS, "num_attention_heads": 8, "num_hidden_layers": LAYERS}
    shape |= {"vocab_size": VOCABULARY, "max_position_embeddings": 1024}
    if name != "gpt_neox":
        shape["num_key_value_heads"] = 2
    torch.manual_seed(0)
    model = Classifier(fam.build(fam.config(**shape), dtype=dtype), fam)
    model.initialise_head(0)
    return model.requires_grad_(False).eval().to("cuda")


def batch_at(step: int, lengths: tuple[int, ...], size: int = 4):
    generator = torch.Generator().manual_seed(step)
    length = lengths[step % len(lengths)]
    draw = lambda: tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())  # noqa: E731
    return collate([Example(f"e{i}", draw(), i % 2) for i in range(size)]).to("cuda")


def surrogate_of(model: Classifier) -> Classifier:
    """Fewer neurons in each block."""
    generator = torch.Generator().manual_seed(9)
    return prune(
        model, [torch.randperm(NEURONS, generator=generator)[: 380 - 20 * i].sort().values for i in range(LAYERS)]
    )


def train(
    engine, model, *, steps: int, lengths: tuple[int, ...], surrogate: str, norm: str = "linf", size: int = 4
) -> list[torch.Tensor]:
    reft = LoReFT(WIDTH, 16, seed=1).to("cuda")
    optimizer = torch.optim.AdamW(reft.parameter_groups(0.01), lr=1e-3)
    defended = Edits(reft=ReftEdit(4, reft))
    inner_model = model if surrogate == "none" else surrogate_of(model)
    ball = Ball(norm, 0.5)
    for step in range(steps):
        batch = batch_at(step, lengths, size)
        with reft.built_once():
            full = engine.prepare(model, batch, WINDOW)
            base = full.hidden(2)
            inner = full
            if surrogate != "none":
                inner = engine.prepare(inner_model, batch, WINDOW, model if surrogate == "window" else None)
            delta = inner.ascend(
                defended, 2, base, torch.zeros_like(base), batch.labels, ball, steps=4, step_size=0.5 / 4
            )
            clean, attacked = full.logits_each(defended, defended.perturbed(2, delta, base))
            loss = F.cross_entropy(clean, batch.labels) + F.cross_entropy(attacked, batch.labels)
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in reft.parameters()]


@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_fifty_captured_steps_are_the_eager_ones(name, surrogate):
    """Prefixes that fill their room exactly, so that both run the same kernels: 50 steps over four shapes, float32."""
    model = classifier(name, torch.float32)
    lengths = (64 + WINDOW, 192 + WINDOW, 128 + WINDOW, 256 + WINDOW)
    eager, captured = (
        train(ReuseEngine(capture=on), model, steps=50, lengths=lengths, surrogate=surrogate) for on in (False, True)
    )
    worst = max((a - b).abs().max().item() for a, b in zip(eager, captured, strict=True))
    print(f"{name}, {surrogate}: largest difference of a parameter after 50 steps {worst:.1e}")
    assert worst == 0.0


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_masked_room_changes_nothing_but_rounding(name):
    """Prefixes of any length: one step's perturbation and gradients agree with the reference's."""
    model = classifier(name, torch.float32)
    for engine in (ReuseEngine(capture=True), ReuseEngine(capture=False)):
        found = train(engine, model, steps=3, lengths=(77, 150, 201), surrogate="none", norm="l2_token")
        expected = train(ReferenceEngine(), model, steps=3, lengths=(77, 150, 201), surrogate="none", norm="l2_token")
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=2e-4)


@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
def test_two_bfloat16_trainings_are_bit_identical(surrogate):
    runs = [
        train(ReuseEngine(), classifier("llama", torch.bfloat16), steps=30, lengths=(84, 140, 300), surrogate=surrogate)
        for _ in range(2)
    ]
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    print(f"{surrogate}: two bfloat16 trainings of 30 steps are bit-identical")


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_captured_attacks_choose_the_eager_suffixes(name, defended):
    model = classifier(name, torch.float32)
    reft = LoReFT(WIDTH, 16, start="random", seed=1).to("cuda").requires_grad_(False)
    target = Defended(model, ReftEdit(3, reft), WINDOW) if defended else Defended(model)
    settings = gcg.Settings(rounds=4, top_k=64, candidates=48, start="random")
    allowed = torch.ones(VOCABULARY, dtype=torch.bool)
    engines = [ReferenceEngine(), ReuseEngine(capture=False), ReuseEngine(capture=True)]
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        length = int(torch.randint(12, 300, (1,), generator=generator))
        content = tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())
        found = [
            gcg.attack(
                engine.search(target, content, length, seed % 2, 128), label=seed % 2, allowed=allowed,
                encode=lambda text: (5,), generator=torch.Generator().manual_seed(seed), settings=settings, survives=None,
            ).tokens
            for engine in engines
        ]  # fmt: skip
        assert found[0] == found[1] == found[2], seed


def train_all(engine, model, *, steps: int, whole: bool) -> list[torch.Tensor]:
    """All weights trained in mixed precision, as LAT (the window's states perturbed) or CAT (all embeddings) do."""
    model.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        for step in range(steps):
            batch = ragged_batch(step)
            window, layer = (batch.length, 0) if whole else (WINDOW, 2)
            prepared = engine.prepare(model, batch, window)
            start = torch.zeros(len(batch), prepared.mask.shape[1], WIDTH, device="cuda")
            delta = prepared.ascend(
                Edits(), layer, None, start, batch.labels, Ball("l2_token", 0.5), steps=6, step_size=0.1
            )
            logits = prepared.training_logits(Edits(), Edits().perturbed(layer, delta))
            loss = F.cross_entropy(logits[0], batch.labels) + F.cross_entropy(logits[1], batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def ragged_batch(step: int):
    """Eight texts of 20 to 300 tokens."""
    generator = torch.Generator().manual_seed(step)
    lengths = torch.randint(20, 300, (8,), generator=generator).tolist()
    draw = lambda length: tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist())  # noqa: E731
    return collate([Example(f"e{i}", draw(length), i % 2) for i, length in enumerate(lengths)]).to("cuda")


@pytest.mark.parametrize("whole", [False, True], ids=["lat", "cat"])
def test_two_trainings_of_all_weights_are_bit_identical(whole):
    runs = [train_all(ReuseEngine(), classifier("llama", torch.float32), steps=20, whole=whole) for _ in range(2)]
    worst = max((one - other).abs().max().item() for one, other in zip(*runs, strict=True))
    moved = max(
        (a - b).abs().max().item()
        for a, b in zip(runs[0], classifier("llama", torch.float32).parameters(), strict=True)
    )
    print(f"{'CAT' if whole else 'LAT'}: two trainings of 20 steps differ by {worst:.1e}, weights moved by {moved:.1e}")
    assert worst == 0.0
    assert moved > 1e-3


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_training_loop_goes_from_an_eager_first_step_to_captured_ones(precision, accumulate):
    """FLOPs are counted over the first step, which therefore runs eagerly, on the default stream."""
    found = []
    for engine in (ReuseEngine(capture=False), ReuseEngine()):
        model = classifier("llama", torch.float32).requires_grad_(True)

        def losses_at(step: int, model=model, engine=engine) -> Losses:
            batch = batch_at(step, (64, 128, 192))  # no padding: both engines run the same kernels
            (logits,) = engine.prepare(model, batch, 1).training_logits(Edits())
            return Losses(F.cross_entropy(logits, batch.labels), batch.tokens.numel())

        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False):
            run_training(model, optimizer, losses_at, 6, accumulate=accumulate, max_gradient_norm=1.0)
        found.append([parameter.detach().clone() for parameter in model.parameters()])
        assert (engine.tools.graphs is not None) == any("whole training" in key for key in made_by(engine))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def made_by(engine: ReuseEngine) -> list:
    """Keys of what an engine has captured."""
    return [] if engine.tools.graphs is None else list(engine.tools.graphs._made)


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_captured_full_passes_are_the_references(name):
    model = classifier(name, torch.float32)
    engine = ReuseEngine()
    for step in range(4):
        batch = ragged_batch(step)
        start = torch.zeros(len(batch), batch.length, WIDTH, device="cuda")
        found, expected = (
            one.prepare(model, batch, batch.length).ascend(
                Edits(), 0, None, start, batch.labels, Ball("l2_token", 0.5), steps=4, step_size=0.2
            )
            for one in (engine, ReferenceEngine())
        )
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("defended", [False, True])
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_attacks_in_flight_choose_the_references_suffixes(name, defended):
    model = classifier(name, torch.float32)
    reft = LoReFT(WIDTH, 16, start="random", seed=1).to("cuda").requires_grad_(False)
    target = Defended(model, ReftEdit(3, reft), WINDOW) if defended else Defended(model)
    settings = gcg.Settings(rounds=4, top_k=64, candidates=48, start="random")
    lengths = [20, 35, 60, 50, 130, 150, 131, 140]
    engine, reference, found, expected = ReuseEngine(), ReferenceEngine(), {}, {}

    def attack(search, seed):
        return gcg.attack(
            search, label=seed % 2, allowed=torch.ones(VOCABULARY, dtype=torch.bool), encode=lambda text: (5,),
            generator=torch.Generator().manual_seed(seed), settings=settings, survives=None,
        ).tokens  # fmt: skip

    for members in engine.groups(target, [(length, length) for length in lengths], 4):
        contents = {
            i: tuple(torch.randint(3, VOCABULARY, (lengths[i],), generator=torch.Generator().manual_seed(i)).tolist())
            for i in members
        }
        searches = [engine.search(target, contents[i], lengths[i], i % 2, 128) for i in members]
        assert len(members) > 1
        together = run_all(engine, searches, [partial(attack, seed=i) for i in members], 10, 4)
        found.update(zip(members, together, strict=True))
        for i in members:
            expected[i] = attack(reference.search(target, contents[i], lengths[i], i % 2, 128), i)
    assert found == expected


@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt_neox"])
def test_candidates_losses_by_the_flash_kernel_are_the_plain_ones_up_to_rounding(monkeypatch, name):
    """In bfloat16, eager and captured with masked room, alone and in flight; twice the same."""
    model = classifier(name, torch.bfloat16)
    reft = LoReFT(WIDTH, 16, start="random", seed=1).to("cuda").requires_grad_(False)
    target, lengths = Defended(model, ReftEdit(3, reft), WINDOW), [20, 130, 250, 61]
    draw = lambda *shape: torch.randint(3, VOCABULARY, shape, generator=torch.Generator().manual_seed(sum(shape)))  # noqa: E731
    contents = [tuple(draw(length).tolist()) for length in lengths]
    candidates = [draw(48 - i, 10) for i in range(4)]
    calls = []
    kernel = attention.varlen_attn
    monkeypatch.setattr(attention, "varlen_attn", lambda *args, **more: calls.append(1) or kernel(*args, **more))

    def losses(engine) -> list[torch.Tensor]:
        searches = [engine.search(target, content, len(content), 1, 64) for content in contents]
        return [search.losses(rows)[0].float() for search, rows in zip(searches, candidates, strict=True)]

    def in_flight(engine) -> list[torch.Tensor]:
        searches = [engine.search(target, content, len(content), 1, 64) for content in contents]
        found = engine.group(searches, 10, 4).losses(dict(enumerate(candidates)))
        return [found[i][0].float() for i in range(4)]

    flash = []
    for run, engine in (
        (losses, ReuseEngine(capture=False)), (losses, ReuseEngine()), (in_flight, ReuseEngine()), (losses, ReuseEngine())
    ):  # fmt: skip
        calls.clear()
        flash.append(run(engine))
        assert len(calls) >= LAYERS
    monkeypatch.setattr(prefix, "flash_serves", lambda keys, variants: False)
    for found in flash:
        torch.testing.assert_close(found, losses(ReuseEngine(capture=False)), rtol=0, atol=0.01)
    torch.testing.assert_close(flash[1], flash[3], rtol=0, atol=0)


def test_dead_graphs_are_not_freed_while_another_is_captured():
    """Graphs that only cycles hold any more, and a collector that runs at every opportunity."""
    pool, dead = torch.cuda.graph_pool_handle(), []

    def cycle() -> list:
        found: list = [capture(lambda tensor: tensor * 2, [torch.ones(4, device="cuda")], pool)]
        found.append(found)
        return found

    def function(tensor):
        if torch.cuda.is_current_stream_capturing():
            dead.clear()
            gc.set_threshold(1, 1, 1)
        for _ in range(50):
            tensor = torch.cat([part + 1 for part in tensor.split(2)])
        return tensor

    thresholds, ones = gc.get_threshold(), torch.ones(4, device="cuda")
    gc.set_threshold(10**6)  # what is made now stays young
    try:
        dead += [cycle() for _ in range(5)]
        found = capture(function, [ones], pool)(ones).clone()
    finally:
        gc.set_threshold(*thresholds)
    torch.testing.assert_close(found, ones + 50)


def own_training(method, engine, steps: int = 6, **parts):
    """A baseline's own training on texts of 20 to 300 tokens, batches of like length."""
    lengths = torch.randint(20, 300, (24,), generator=torch.Generator().manual_seed(5)).tolist()
    draw = lambda i, length: tuple(  # noqa: E731
        torch.randint(3, VOCABULARY, (length,), generator=torch.Generator().manual_seed(i)).tolist()
    )
    examples = [Example(f"e{i}", draw(i, length), i % 2) for i, length in enumerate(lengths)]
    lora = {"lora_rank": 4, "lora_alpha": 8, "four_bit": "never", "step_size": 0.05, "learning_rate": 1e-3}
    own = lora if method is cat else {"attack_layer": 2, "window": WINDOW, "learning_rate": 1e-4}
    settings = method.Settings(
        epsilon=0.3, steps=4, examples=24, epochs=steps / 3, batch_size=8, group_by_length=True, **own
    )
    run = Training(engine, classifier("llama", torch.float32), None, examples, {}, seed=0, max_length=512, **parts)
    return method.train(run, settings)


@pytest.mark.parametrize("method", [lat, cat], ids=["lat", "cat"])
def test_a_baseline_is_trained_alike_captured_and_eagerly_and_twice_alike(method):
    """LAT's two outer passes are captured and descended on in turn. CAT's inner passes read adapters that are multiplied
    out anew each step, in a fixed place."""
    if method is cat:
        pytest.importorskip("peft")
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        one, other = (own_training(method, ReuseEngine()) for _ in range(2))
    assert all(torch.equal(one.weights[name], other.weights[name]) for name in one.weights)
    captured, eager = (own_training(method, ReuseEngine(capture=on)) for on in (True, False))
    for ours, theirs in zip(captured.summary.history, eager.summary.history, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3 if method is cat else 0.05)  # LAT's rate moves all weights
    assert captured.summary.history[-1]["loss"] < captured.summary.history[0]["loss"]


@pytest.mark.parametrize("compiled", ["inner", False])
def test_a_resumed_training_ends_in_the_bits_of_an_uninterrupted_one(compiled, tmp_path):
    def run(**parts):
        torch._dynamo.reset()  # another process has compiled nothing
        with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
            return own_training(lat, ReuseEngine(compiled=compiled), steps=12, **parts)

    whole = run()
    for stop in (4, 7, 11):
        kept = checkpoint(tmp_path / f"{stop}.pt")
        with pytest.raises(KeyboardInterrupt):
            run(checkpoint=kept, progress=StopAt(stop))
        resumed = run(checkpoint=kept)
        assert all(torch.equal(resumed.weights[name], whole.weights[name]) for name in whole.weights)
    print(
        f"LAT, compiled {compiled}: trainings of 12 steps resumed after 3, 6 and 10 are bit-identical to the whole one"
    )


@pytest.mark.parametrize("method", [lat, cat], ids=["lat", "cat"])
def test_a_baseline_is_trained_alike_with_compiled_inner_passes(method):
    if method is cat:
        pytest.importorskip("peft")
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        engine = ReuseEngine(compiled="inner")
        compiled, plain = own_training(method, engine), own_training(method, ReuseEngine())
    assert engine.tools.compiler.runs
    for ours, theirs in zip(compiled.summary.history, plain.summary.history, strict=True):
        assert ours == pytest.approx(theirs, rel=0.02 if method is cat else 0.05)


@pytest.mark.parametrize("surrogate", ["none", "exact", "window"])
def test_compiled_inner_passes_are_the_uncompiled_ones_up_to_rounding(surrogate):
    """In mixed precision. All weights are trainable without a surrogate: PGD's steps ask for no gradient of theirs. The
    blocks of a surrogate differ in width."""
    model = classifier("llama", torch.float32).requires_grad_(surrogate == "none")
    cut = model if surrogate == "none" else surrogate_of(model)
    engines = [ReuseEngine(compiled="inner"), ReuseEngine(compiled="inner"), ReuseEngine()]
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        for step in range(3):
            batch, found = ragged_batch(step), []
            for engine in engines:
                engine.prepare(model, batch, WINDOW).hidden(2)
                inner = engine.prepare(cut, batch, WINDOW, model if surrogate == "window" else None)
                start = torch.zeros(len(batch), inner.mask.shape[1], WIDTH, device="cuda")
                ball = Ball("l2_token", 0.5)
                found.append(inner.ascend(Edits(), 2, None, start, batch.labels, ball, steps=1, step_size=0.1))
            assert torch.equal(found[0], found[1])
            apart = (found[0] - found[2]).norm() / found[2].norm()
            print(f"{surrogate}: compiled ascent apart from the uncompiled one by {apart:.1%}")
            assert apart < 0.1
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad == (surrogate == "none") for parameter in model.parameters())
    assert all(engine.tools.compiler.runs for engine in engines[:2])


COMPILED = """
import hashlib, sys
import torch, test_captured_passes as tests
tests.determinism.deterministic()
size, *lengths = map(int, sys.argv[1:])
found = tests.train(
    tests.ReuseEngine(compiled=True), tests.classifier("llama", torch.bfloat16), steps=10, lengths=tuple(lengths),
    surrogate="none", size=size,
)
print(hashlib.sha256(b"".join(tensor.cpu().numpy().tobytes() for tensor in found)).hexdigest())
"""


def digest(cache: Path, size: int, *lengths: int) -> str:
    """Of the weights of a compiled training, in a process of its own whose compiler keeps its cache in ``cache``."""
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, str(size), *map(str, lengths)],
        env=os.environ | own, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()[-1]


def test_two_compiled_trainings_are_bit_identical_each_compiled_by_its_own_process(tmp_path):
    """Without the compiler's deterministic mode kernels are chosen by timing them."""
    assert digest(tmp_path / "one", 4, 84) == digest(tmp_path / "other", 4, 84)
    print("two compiled bfloat16 trainings of 10 steps, each in a process of its own, are bit-identical")


def test_a_compiled_training_is_the_same_whatever_the_compiler_has_in_its_cache(tmp_path):
    job = (4, 84, 148, 212)
    digest(tmp_path / "shared", 32, 532, 276)
    assert digest(tmp_path / "shared", *job) == digest(tmp_path / "own", *job)
    print("a compiled training is the same beside another's compiled code")
