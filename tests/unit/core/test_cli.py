"""What a user can put right is one line; a fault of the program keeps its traceback; a job's log has either."""

from __future__ import annotations

import ast
import errno
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from latreft.cli import job_script, one_line_errors
from latreft.settings import SettingsError


@pytest.mark.parametrize(
    "error",
    [SettingsError("bad\nkey"), ValueError("bad key"), FileNotFoundError("bad key"), PermissionError("bad key")],
)
def test_user_errors_are_one_line_and_exit_code_1(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped, one_line_errors():
        raise error
    assert stopped.value.code == 1 and capsys.readouterr().err == "error: bad key\n"


def test_an_error_without_text_names_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), one_line_errors():
        raise ValueError
    assert capsys.readouterr().err == "error: ValueError\n"


@pytest.mark.parametrize("error", [KeyError, TypeError, ZeroDivisionError, KeyboardInterrupt])
def test_other_exceptions_pass(error: type[BaseException]) -> None:
    with pytest.raises(error), one_line_errors():
        raise error


def test_it_is_a_decorator_too(capsys: pytest.CaptureFixture[str]) -> None:
    @one_line_errors()
    def work(value: int) -> int:
        if value < 0:
            raise ValueError("negative")
        return value + 1

    assert work(1) == 2 and work(2) == 3
    with pytest.raises(SystemExit):
        work(-1)
    assert capsys.readouterr().err == "error: negative\n"


# --- the log of a job ---

SOURCE = Path(__file__).parents[3] / "src"


def job(log: Path, work: Callable[[], Any]) -> None:
    """Run ``work`` as the main function of a rule's script."""

    @job_script
    def main(_snakemake: Any) -> None:
        work()

    main(SimpleNamespace(log=[str(log)]))


def failing(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


def disk_is_full() -> None:
    raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0")


@pytest.mark.parametrize(
    "work",
    [
        failing(SettingsError("bad\nkey")),
        failing(FileNotFoundError("gone")),
        failing(OSError(errno.ENOSPC, "full")),
        failing(ValueError()),
        disk_is_full,
    ],
)
def test_the_log_has_the_line_that_the_terminal_gets(
    work: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "new folder" / "job.log"
    with pytest.raises(SystemExit) as stopped:
        job(log, work)
    said = log.read_text()
    assert stopped.value.code == 1 and said == capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


@pytest.mark.parametrize("error", [KeyError("layer"), TypeError("None"), FloatingPointError("loss"), RuntimeError("x")])
def test_the_log_of_a_fault_of_the_program_has_its_traceback(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)):
        job(tmp_path / "job.log", failing(error))
    said = (tmp_path / "job.log").read_text()
    assert said.startswith("Traceback") and "raise error" in said and type(error).__name__ in said.splitlines()[-1]


def test_the_log_says_that_a_job_was_told_to_stop(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        job(tmp_path / "job.log", failing(SystemExit("stopped by SIGTERM after step 3")))
    assert (tmp_path / "job.log").read_text() == "stopped by SIGTERM after step 3\n"


def test_warnings_are_lines_on_the_terminal_and_in_the_log_while_the_job_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def work() -> None:
        logging.getLogger("latreft.attacks.run").warning("gcg: %d of\n%d", 1, 2)
        logging.getLogger("someone").error("lost")
        logging.getLogger("latreft").info("not worth a line")
        warnings.warn("a kernel is not deterministic", stacklevel=2)

    job(tmp_path / "job.log", work)
    said = (tmp_path / "job.log").read_text()
    lines = said.splitlines()
    assert lines[:2] == ["warning: gcg: 1 of 2", "error: lost"] and len(lines) == 3
    assert lines[2].startswith("warning: ") and "UserWarning: a kernel is not deterministic" in lines[2]
    assert capsys.readouterr().err == said
    logging.getLogger("latreft").warning("after the job")
    assert (tmp_path / "job.log").read_text() == said


def test_a_log_begins_anew_with_each_run_of_its_job(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("of the run before\n")
    job(tmp_path / "job.log", lambda: None)
    assert (tmp_path / "job.log").read_text() == ""


def test_a_log_that_cannot_be_written_hides_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), one_line_errors(tmp_path):  # a folder
        raise ValueError("the fault")
    assert capsys.readouterr().err == "error: the fault\n"


@pytest.mark.parametrize("script", sorted(SOURCE.glob("*.py")), ids=lambda path: path.name)
def test_every_rule_s_script_has_such_a_log(script: Path) -> None:
    (main,) = [
        node for node in ast.parse(script.read_text()).body if isinstance(node, ast.FunctionDef) and node.name == "main"
    ]
    assert [ast.unparse(decorator) for decorator in main.decorator_list] == ["job_script"]
