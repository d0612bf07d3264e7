"""What every job does first and last: device, threads, determinism, log, provenance."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from latreft.cli import say
from latreft.cost.measured import peak_memory
from latreft.determinism import deterministic
from latreft.engine.interface import Engine
from latreft.engine.reference import ReferenceEngine
from latreft.engine.reuse import ReuseEngine
from latreft.engine.window import Compiled
from latreft.gpu import one_card, visible_cards
from latreft.progress import ProgressReport
from latreft.records import device_name

PACKAGES = ("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy")


@dataclass(frozen=True)
class Runtime:
    """Settings of how a job runs, as its rule hands them over."""

    device: str
    engine: str
    compiled: Compiled
    autocast: str | None
    threads: int
    deterministic: bool = True


ENGINES: dict[str, Callable[[Runtime], Engine]] = {
    "reference": lambda _runtime: ReferenceEngine(),
    "reuse": lambda runtime: ReuseEngine(compiled=runtime.compiled),
}


@dataclass
class Job:
    """A running job: its device, its engine, and where it reports to."""

    runtime: Runtime
    device: torch.device
    device_name: str
    log_path: Path | None
    started: float

    @cached_property
    def engine(self) -> Engine:
        """One engine a job: it keeps what it has captured."""
        return ENGINES[self.runtime.engine](self.runtime)

    def log(self, message: str) -> None:
        """One line to the terminal and to the job's log file."""
        say(message, self.log_path)

    def progress(self, label: str, unit: str) -> ProgressReport:
        """Progress of a long step."""
        return ProgressReport(label, unit, log=self.log_path)

    def precision(self) -> Any:
        """Mixed precision, where the scale asks for it.

        Without autocast's cache: it would keep the first step's rounded weights for the whole training, and a captured
        graph would read them after they are gone.
        """
        if self.runtime.autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.runtime.autocast), cache_enabled=False)

    def cost(self) -> dict[str, Any]:
        """Seconds, peak memory and device of this job so far."""
        peak = peak_memory(self.device)
        return {
            "seconds": round(time.monotonic() - self.started, 3),
            "peak_memory_bytes": peak.bytes,
            "peak_memory_measure": peak.measure,
            "device": self.device_name,
        }

    def provenance(self, code: str, inputs: Mapping[str, str]) -> dict[str, Any]:
        """Package versions, the hash of the code that ran, how it was to run, and checksums of what was read."""
        versions = {"python": platform.python_version()}
        for package in PACKAGES:
            try:
                versions[package] = importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                continue
        runtime = asdict(self.runtime)
        return {"code": code, "inputs": dict(sorted(inputs.items())), "runtime": runtime, "versions": versions}


@contextmanager
def start(runtime: Mapping[str, Any], log: str | None = None, jobs_per_gpu: int = 1) -> Iterator[Job]:
    """Take the device, set threads and determinism, and go on with the log.

    ``device: auto`` takes a GPU where there is one; ``cuda`` without a GPU is an error. Of a GPU that may run several
    jobs at a time the records say so: their seconds need not be those of a job alone.
    """
    settings = Runtime(**runtime)
    log_path = None if log is None else Path(log)
    if log_path is not None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        log_path.touch()
    torch.set_num_threads(settings.threads)
    disable_progress_bar()
    deterministic(settings.deterministic)
    with ExitStack() as stack:
        use_gpu = settings.device == "cuda" or (settings.device == "auto" and bool(visible_cards()))
        if use_gpu:
            stack.enter_context(one_card(jobs=jobs_per_gpu))
        device = torch.device("cuda" if use_gpu else "cpu")
        cpu = f"CPU, {settings.threads} thread(s)"
        name = device_name(torch.cuda.get_device_name(), jobs_per_gpu) if use_gpu else cpu
        job = Job(settings, device, name, log_path, time.monotonic())
        if settings.compiled and not (use_gpu and settings.engine == "reuse"):
            job.log(f"compiled: {settings.compiled!r} does nothing here: it is for the engine reuse on a GPU")
        yield job
