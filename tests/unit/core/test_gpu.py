"""One job, one card; a machine without a card says so."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

import latreft
from latreft import gpu, job
from latreft.settings import SettingsError

SOURCE = str(Path(latreft.__file__).parents[1])


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """What a test sets does not leak."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def test_without_a_card_there_is_one_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(SettingsError, match="device is 'cuda', but no GPU is visible; set device to 'cpu' or 'auto'"), \
         gpu.one_card(tmp_path):  # fmt: skip
        pass


def test_counting_the_cards_does_not_start_cuda(monkeypatch):
    """CUDA fixes its list of cards when it starts; a card chosen after that would be ignored."""

    def started(*_args):
        raise AssertionError("CUDA was started")

    monkeypatch.setattr(torch.cuda, "is_available", started)
    monkeypatch.setattr(torch.cuda, "_lazy_init", started)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert gpu.visible_cards() == ["0", "1", "2"]
    assert os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] == "1"
    assert not torch.cuda.is_initialized()


@pytest.mark.parametrize(
    ("named", "cards"), [("2", ["2"]), ("3, 5", ["3", "5"]), ("GPU-1a,MIG-7/0", ["GPU-1a", "MIG-7/0"])]
)
def test_cards_are_called_as_the_environment_calls_them(monkeypatch, named, cards):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(cards))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpu.visible_cards() == cards


def test_jobs_hold_different_cards_and_give_them_back(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0", "1"])
    with gpu.one_card(tmp_path) as first:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == first == "0"
        with gpu.one_card(tmp_path) as second:
            assert os.environ["CUDA_VISIBLE_DEVICES"] == second == "1"
    with gpu.one_card(tmp_path) as again:
        assert again == "0"


def test_cards_are_shared_where_asked(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0", "1"])
    with ExitStack() as stack:
        held = [stack.enter_context(gpu.one_card(tmp_path, jobs=2)) for _ in range(4)]
        assert held == ["0", "1", "0", "1"]
        monkeypatch.setattr(gpu.time, "sleep", lambda _seconds: pytest.fail("waits"))
        with pytest.raises(pytest.fail.Exception, match="waits"):
            stack.enter_context(gpu.one_card(tmp_path, jobs=2))


def test_the_emptiest_card_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0", "1"])
    with ExitStack() as first, ExitStack() as others:
        assert first.enter_context(gpu.one_card(tmp_path, jobs=2)) == "0"
        assert others.enter_context(gpu.one_card(tmp_path, jobs=2)) == "1"
        assert others.enter_context(gpu.one_card(tmp_path, jobs=2)) == "0"
        first.close()
        assert others.enter_context(gpu.one_card(tmp_path, jobs=2)) == "0"
        others.close()
        with gpu.one_card(tmp_path, jobs=2) as held:
            assert held == "0"
            with gpu.one_card(tmp_path, jobs=2) as other:
                assert other == "1"


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, 2), (2, 1)])
def test_a_job_alone_shares_with_nobody(monkeypatch, tmp_path, first, second):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0"])
    monkeypatch.setattr(gpu.time, "sleep", lambda _seconds: pytest.fail("waits"))
    with (
        gpu.one_card(tmp_path, jobs=first),
        pytest.raises(pytest.fail.Exception, match="waits"),
        gpu.one_card(tmp_path, jobs=second),
    ):
        pass
    with gpu.one_card(tmp_path, jobs=second) as card:
        assert card == "0"


@pytest.mark.parametrize(("jobs", "name"), [(1, "a card"), (3, "a card, up to 3 jobs at a time")])
def test_records_say_that_a_card_is_shared(monkeypatch, jobs, name):
    asked = []

    @contextmanager
    def one_card(**arguments):
        asked.append(arguments)
        yield "0"

    monkeypatch.setattr(job, "one_card", one_card)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a card")
    runtime = {"device": "cuda", "engine": "reference", "compiled": False, "autocast": None, "threads": 1}
    with job.start(runtime | {"deterministic": False}, None, jobs) as running:
        assert running.device_name == name
    assert asked == [{"jobs": jobs}]


def test_a_card_comes_back_after_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0"])
    with pytest.raises(RuntimeError), gpu.one_card(tmp_path):
        raise RuntimeError
    with gpu.one_card(tmp_path) as card:
        assert card == "0"


def test_two_processes_get_different_cards_and_a_third_waits(monkeypatch, tmp_path):
    program = (
        f"import sys; sys.path.insert(0, {SOURCE!r})\n"
        "from pathlib import Path\n"
        "from latreft import gpu\n"
        "gpu.visible_cards = lambda: ['0', '1']\n"
        f"with gpu.one_card(Path({str(tmp_path)!r}), 0.05) as card:\n"
        "    print(card, flush=True); sys.stdin.readline()\n"
    )

    def job() -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    jobs = [job(), job()]
    try:
        cards = [one.stdout.readline().strip() for one in jobs]
        assert sorted(cards) == ["0", "1"]
        monkeypatch.setattr(gpu, "visible_cards", lambda: ["0", "1"])
        waited = []

        def wait(_seconds):
            waited.append(1)
            if len(waited) == 2:  # a killed holder's card is free at once
                jobs[0].kill()
                jobs[0].wait()

        monkeypatch.setattr(gpu.time, "sleep", wait)
        with gpu.one_card(tmp_path) as card:
            assert card == cards[0]
        assert len(waited) >= 2
    finally:
        for one in jobs:
            one.kill()
            one.wait()
            one.stdin.close()
            one.stdout.close()


def test_a_schedulers_single_card_is_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5")
    with gpu.one_card(tmp_path) as card:
        assert card == os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-5"


def test_two_slurm_jobs_that_both_call_their_card_0_do_not_wait_for_each_other(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "visible_cards", lambda: ["0"])
    monkeypatch.setattr(gpu.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "11")
    with gpu.one_card() as first:
        monkeypatch.setenv("SLURM_JOB_ID", "12")
        with gpu.one_card() as second:
            assert first == second == "0"
    assert len(list(tmp_path.iterdir())) == 2
