"""Model families by name: a module in this package that defines ``FAMILY``, the few names by which families differ.

A new family is one such file. Nothing else lies here, and nothing imports one but by its name: a family's module is code
of the jobs of its own models only.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from torch import nn

from latreft.settings import SettingsError


def _attention() -> str:
    """The name of this project's attention; transformers is imported where a model is made, not before."""
    from latreft.models.attention import NAME

    return NAME


@dataclass(frozen=True)
class Family:
    """Where a family keeps its parts, as attribute paths inside the base model (no language-model head)."""

    name: str
    module: str
    model_class: str
    config_class: str
    embedding: str
    blocks: str
    mlp_inputs: tuple[str, ...]
    mlp_output: str
    rms_norm: str | None = None
    """The class of the blocks' norms, where it is one that torch has."""

    def _model(self) -> Any:
        return getattr(
            importlib.import_module(f"transformers.models.{self.module}.modeling_{self.module}"), self.model_class
        )

    def build(self, config: Any, **kwargs: Any) -> nn.Module:
        """A base model with random weights for a transformers configuration."""
        return self._with_mixed_norms(self._model()._from_config(config, attn_implementation=_attention(), **kwargs))

    def from_pretrained(self, source: str, **kwargs: Any) -> tuple[nn.Module, dict[str, Any]]:
        """A base model with the weights of a local folder or a hub repository, and what of these did not fit."""
        base, info = self._model().from_pretrained(
            source, attn_implementation=_attention(), output_loading_info=True, **kwargs
        )
        return self._with_mixed_norms(base), info

    def _with_mixed_norms(self, base: nn.Module) -> nn.Module:
        from latreft.models.norms import mix_norms

        if self.rms_norm is not None:
            mix_norms(self.block_list(base), self.rms_norm)
        return base

    def config(self, **values: Any) -> Any:
        """A transformers configuration of this family."""
        module = importlib.import_module(f"transformers.models.{self.module}.configuration_{self.module}")
        return getattr(module, self.config_class)(**values)

    def block_list(self, base: nn.Module) -> nn.ModuleList:
        """The decoder blocks, first to last."""
        blocks = base.get_submodule(self.blocks)
        assert isinstance(blocks, nn.ModuleList)
        return blocks

    def embedding_layer(self, base: nn.Module) -> nn.Embedding:
        """The token embedding."""
        embedding = base.get_submodule(self.embedding)
        assert isinstance(embedding, nn.Embedding)
        return embedding

    def neuron_layers(self, block: nn.Module) -> tuple[list[nn.Linear], nn.Linear]:
        """The linear layers that write a block's MLP neurons, and the one that reads them.

        The neuron's activation is the input of the reading layer. In a gated MLP gate, up and down are cut together.
        """
        inputs = [block.get_submodule(name) for name in self.mlp_inputs]
        return inputs, block.get_submodule(self.mlp_output)  # type: ignore[return-value]


def names() -> list[str]:
    """The families there are, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def family(name: str) -> Family:
    """The family called ``name``, or an error that lists the known ones."""
    if name not in names():
        raise SettingsError(f"unknown model family {name!r}; known families: {', '.join(names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    found: object = getattr(module, "FAMILY", None)
    if not isinstance(found, Family) or found.name != name:
        raise SettingsError(f"{module.__file__}: FAMILY is {found!r}; right is a Family with the name {name!r}")
    return found
