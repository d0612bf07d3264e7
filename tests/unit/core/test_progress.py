"""A long step says how far it is, with its loss and the time left."""

from __future__ import annotations

import io

from latreft.progress import ProgressReport


def test_lines_come_at_intervals_and_at_the_end_on_stream_and_in_the_log(tmp_path):
    stream, log = io.StringIO(), tmp_path / "log.txt"
    report = ProgressReport("train", "step", every=1e9, stream=stream, log=log)
    for done in range(1, 6):
        report.update(done, 5, {"loss": 0.123456})
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("train: 5/5 step, loss 0.1235, ")
    assert log.read_text().splitlines() == lines


def test_every_update_says_the_time_left_where_asked():
    stream = io.StringIO()
    report = ProgressReport("train", "step", every=0, stream=stream)
    report.update(101, 200)  # a resumed step
    report.update(102, 200)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("train: 101/200 step, ")
    assert first.endswith(" left")
    assert second.startswith("train: 102/200 step")


def test_a_terminal_gets_a_bar_and_the_log_the_line(tmp_path):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream, log = Terminal(), tmp_path / "log.txt"
    report = ProgressReport("train", "step", stream=stream, log=log)
    for done in (1, 2, 3):
        report.update(done, 3, {"loss": 1.0})
    assert "3/3" in stream.getvalue()
    assert log.read_text().startswith("train: 3/3 step, loss 1, ")
