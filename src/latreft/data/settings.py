"""What a data set is: where it comes from, which texts are kept and how many go where (Section A.1, Table 2)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt, field_validator, model_validator

from latreft.settings import Settings

PINNED = re.compile(r"[0-9a-f]{40}|v?\d+\.\d+(\.\d+)?")
TOKENIZER_KINDS = "'gpt2', 'file:PATH/tokenizer.json', 'bpe:FOLDER' (encoder.json and vocab.bpe) or 'whitespace'"


class HubSource(Settings):
    """A data set of the Hugging Face hub at a pinned commit or version, or a local folder laid out as one."""

    kind: Literal["hub"]
    repo: str
    revision: str
    config: str | None = None
    text_column: str = "content"
    label_column: str
    train_split: str = "train"
    validation_split: str | None = "validation"
    citation: str

    @property
    def local(self) -> bool:
        """Whether ``repo`` is a folder that exists here (relative to the working directory)."""
        return Path(self.repo).is_dir()

    @model_validator(mode="after")
    def _pinned(self) -> HubSource:
        if not self.local and not PINNED.fullmatch(self.revision):
            raise ValueError(
                f"revision {self.revision!r} of {self.repo} must be a commit of 40 lower-case hexadecimal digits or a "
                "version tag such as 2.1.0: a branch moves, and equal settings would then give other data; copy the "
                "commit from the data set's history"
            )
        return self

    @property
    def has_validation(self) -> bool:
        """Whether the source itself separates validation rows."""
        return self.validation_split is not None


class ParquetSource(Settings):
    """A parquet file, or a folder of them; with ``split_column`` its rows say which split they belong to."""

    kind: Literal["parquet"]
    path: str
    text_column: str = "text"
    label_column: str = "label"
    split_column: str | None = None
    train_value: str = "train"
    validation_value: str | None = None
    citation: str

    @model_validator(mode="after")
    def _validation_needs_split_column(self) -> ParquetSource:
        if self.split_column is None and self.validation_value is not None:
            raise ValueError(f"validation_value {self.validation_value!r} needs split_column, the column to find it in")
        return self

    @property
    def has_validation(self) -> bool:
        """Whether the source itself separates validation rows."""
        return self.validation_value is not None


class SampleSource(Settings):
    """A sample committed with the project; columns ``text``, ``label`` and ``split`` (train or validation)."""

    kind: Literal["sample"]
    path: str | None = Field(default=None, description="parquet file; None is resources/sample/NAME.parquet")
    citation: str = "see resources/sample/README.md"

    @property
    def has_validation(self) -> bool:
        """A sample always separates validation rows."""
        return True


class GeneratedSource(Settings):
    """Texts made by a deterministic generator: numbers of training and validation texts, and its seed."""

    kind: Literal["generated"]
    generator: Literal["password_match"]
    train: PositiveInt
    validation: PositiveInt
    seed: int = 0

    @property
    def has_validation(self) -> bool:
        """A generator always separates validation rows."""
        return True


Source = Annotated[HubSource | ParquetSource | SampleSource | GeneratedSource, Field(discriminator="kind")]


class LengthFilter(Settings):
    """Keep texts of ``min_tokens`` to ``max_tokens`` tokens, both included, as ``tokenizer`` counts them."""

    min_tokens: int = Field(ge=1)
    max_tokens: int
    tokenizer: str

    @field_validator("tokenizer")
    @classmethod
    def _known_tokenizer(cls, value: str) -> str:
        kind, _, place = value.partition(":")
        if value in ("gpt2", "whitespace") or (kind in ("file", "bpe") and place):
            return value
        raise ValueError(f"must be {TOKENIZER_KINDS}")

    @model_validator(mode="after")
    def _range(self) -> LengthFilter:
        if self.max_tokens < self.min_tokens:
            raise ValueError(f"max_tokens {self.max_tokens} is below min_tokens {self.min_tokens}: no text is kept")
        return self


class DatasetSettings(Settings):
    """One binary text classification data set and its splits.

    ``label_names[i]`` is the name of label ``i``. ``max_length`` is the number of tokens that the classifier sees,
    content and suffix together. ``ft_train``, ``attack`` and ``tuning`` are numbers of texts drawn without overlap from
    the filtered training rows; ``validation`` is the number of filtered validation rows kept (None: all of them).
    ``validation_share`` is for sources without validation rows: that share of the cleaned and filtered rows is set
    aside before anything else is drawn. ``seed`` drives every draw.
    """

    source: Source
    label_names: tuple[str, str]
    title: str
    length: LengthFilter
    max_length: PositiveInt
    ft_train: PositiveInt
    attack: PositiveInt
    tuning: int = Field(default=0, ge=0)
    validation: PositiveInt | None = None
    validation_share: float | None = Field(default=None, gt=0.0, lt=1.0)
    seed: int = 42

    @field_validator("label_names")
    @classmethod
    def _distinct_names(cls, value: tuple[str, str]) -> tuple[str, str]:
        if value[0].casefold() == value[1].casefold():
            raise ValueError("must be two different names, that of label 0 first")
        return value

    @model_validator(mode="after")
    def _one_origin_of_validation(self) -> DatasetSettings:
        if self.source.has_validation and self.validation_share is not None:
            raise ValueError("validation_share is given, but the source has validation rows of its own; leave one out")
        if not self.source.has_validation and self.validation_share is None:
            raise ValueError("the source has no validation rows; give validation_share, for example 0.06")
        return self
