"""What a user can put right is one line; a fault of the program keeps its traceback."""

from __future__ import annotations

import pytest

from latreft.cli import one_line_errors
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
