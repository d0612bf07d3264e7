"""A file is whole or absent, whatever happens to its writer."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import latreft
from latreft.files import atomic, check_manifest, fingerprint, read_json, sha256, write_json, write_text

SOURCE = str(Path(latreft.__file__).parents[1])


def test_success_publishes_and_leaves_nothing_else(tmp_path):
    target = tmp_path / "new folder" / "a.json"
    write_json(target, {"b": 1, "a": "ä"})
    assert json.loads(target.read_text(encoding="utf-8")) == {"a": "ä", "b": 1}
    assert list(target.parent.iterdir()) == [target]
    before = sha256(target)
    write_json(target, {"a": "ä", "b": 1})
    assert sha256(target) == before


def test_an_exception_leaves_what_was_there_and_no_temporary_file(tmp_path):
    target = tmp_path / "a.txt"
    with pytest.raises(RuntimeError), atomic(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    write_text(target, "old")
    with pytest.raises(RuntimeError), atomic(target) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_temporary_file_lies_beside_the_target_with_its_ending(tmp_path):
    with atomic(tmp_path / "a.safetensors") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".safetensors"
        assert temporary.name.startswith(".")


def test_a_published_file_has_the_rights_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("existing", [False, True])
def test_a_killed_writer_leaves_no_half_written_target(existing, tmp_path):
    target = tmp_path / "a.txt"
    if existing:
        target.write_text("old")
    program = (
        f"import sys, time; sys.path.insert(0, {SOURCE!r})\n"
        "from latreft.files import atomic\n"
        f"with atomic({str(target)!r}) as temporary:\n"
        "    with temporary.open('w') as handle:\n"
        "        handle.write('half'); handle.flush(); print('written', flush=True); time.sleep(60)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline().strip() == "written"
    writer.send_signal(signal.SIGKILL)
    writer.wait(10)
    writer.stdout.close()
    assert target.exists() == existing
    if existing:
        assert target.read_text() == "old"
    write_text(target, "new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_that_others_cannot_read_is_never_written(value, tmp_path):
    with pytest.raises(ValueError):
        write_json(tmp_path / "a.json", {"x": value})
    assert list(tmp_path.iterdir()) == []


def test_damaged_json_is_named_with_the_remedy(tmp_path):
    (tmp_path / "a.json").write_text('{"a": 1')
    message = f"{re.escape(str(tmp_path / 'a.json'))} is not valid JSON .*; delete it and rerun the rule"
    with pytest.raises(ValueError, match=message):
        read_json(tmp_path / "a.json")


def test_a_fingerprint_ignores_key_order_and_nothing_else():
    assert fingerprint({"a": 1, "b": [1, 2]}) == fingerprint({"b": [1, 2], "a": 1})
    assert len({fingerprint(v) for v in ({"a": 1}, {"a": 2}, {"b": 1}, {"a": "1"}, [1, 2], [2, 1], {"a": None})}) == 7


def test_a_manifest_names_the_file_that_is_missing_or_another(tmp_path):
    manifest = tmp_path / "manifest.json"
    write_json(manifest, {"files": {"x.bin": hashlib.sha256(b"right").hexdigest(), "y.bin": "0"}})
    with pytest.raises(FileNotFoundError, match="x.bin is listed in .*manifest.json but missing; delete the manifest"):
        check_manifest(manifest, "x.bin")
    (tmp_path / "x.bin").write_bytes(b"right")
    assert set(check_manifest(manifest, "x.bin")["files"]) == {"x.bin", "y.bin"}
    with pytest.raises(FileNotFoundError, match="y.bin is listed in"):
        check_manifest(manifest)
    (tmp_path / "x.bin").write_bytes(b"wrong")
    found, right = (hashlib.sha256(content).hexdigest()[:12] for content in (b"wrong", b"right"))
    message = (
        f"x.bin is not the file that .*manifest.json lists: its SHA-256 is {found}, right is {right}; put the file"
    )
    for names in ([], ["x.bin"]):
        with pytest.raises(ValueError, match=message):
            check_manifest(manifest, *names)


def test_readers_see_the_old_or_the_new_file_while_it_is_written(tmp_path):
    target = tmp_path / "a.txt"
    write_text(target, "old")
    with atomic(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
        time.sleep(0.01)
    assert target.read_text() == "new"
