"""Jobs that start in milliseconds: forked from a process that has the slow imports behind it.

Importing torch and transformers takes seconds, and a figure needs hundreds of jobs. A script that begins with
``warm_start(snakemake)`` hands itself over, where the scale says ``warm_start: true``, to a small server on this host
that has imported those packages (and nothing of this project) and forks for each job. The script's own process waits,
passes signals on and ends with the job's exit status; killing it kills the job. Without a server it starts one;
where that fails, the job simply runs in the script's own process. The server ends when it has been idle for a while.

The forked process is the job in every other respect: same script, environment, folder, terminal, results.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

IDLE_SECONDS = 30.0
PR_SET_PDEATHSIG = 1
CHILD = "LATREFT_WARM_CHILD"
PACKAGES = (
    "torch",
    "pandas",
    "pyarrow",
    "pydantic",
    "statsmodels.stats.proportion",
    "safetensors.torch",
    "snakemake.script",
    "transformers.models.auto",
    "transformers.models.llama.modeling_llama",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.gpt_neox.modeling_gpt_neox",
)


READ_AT_IMPORT = ("HF_", "HOME", "HUGGINGFACE_", "PYTORCH_", "TORCH", "TRANSFORMERS_", "XDG_CACHE_HOME")
"""Beginnings of the environment variables that those packages read when they are imported: a server's stay as they were."""


def address() -> Path:
    """The server's socket: one a user, an interpreter, a state of its installed packages, what these read of the
    environment, and a text of this file."""
    packages = Path(sys.prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    installed = packages.stat().st_mtime_ns if packages.is_dir() else 0
    read = sorted(item for item in os.environ.items() if item[0].startswith(READ_AT_IMPORT))
    state = f"{sys.executable} {installed} {os.environ.get('PYTHONPATH', '')} {read} ".encode()
    state += Path(__file__).read_bytes()
    folder = Path(tempfile.gettempdir(), f"latreft-warm-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{hashlib.sha256(state).hexdigest()[:16]}.sock"


# --- the script's side ---


def _connect(path: Path) -> socket.socket:
    """A connection to the server, which is started where there is none."""
    from filelock import FileLock

    def connected() -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            return None
        return connection

    with FileLock(path.with_suffix(".lock"), timeout=60):
        if (connection := connected()) is not None:
            return connection
        path.unlink(missing_ok=True)
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        end = time.monotonic() + 30
        while server.poll() is None and time.monotonic() < end:
            if (connection := connected()) is not None:
                return connection
            time.sleep(0.05)
    raise OSError(f"no server came up at {path}")


def end_with_parent() -> None:
    """Ask the kernel (Linux) for SIGTERM when the process that started this one dies, however it dies.

    Without it a job outlives a killed Snakemake, and the next run starts a second one beside it.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def warm_start(snakemake: Any) -> None:
    """Run the rest of the calling script in a forked, warm process and exit with its status, where the rule asks for it."""
    if CHILD not in os.environ:
        end_with_parent()
    if CHILD in os.environ or not snakemake.params.execution["warm_start"] or not hasattr(os, "fork"):
        return
    request = {"script": sys.argv[0], "folder": os.getcwd(), "environment": dict(os.environ) | {CHILD: "1"}}
    try:
        connection = _connect(address())
        body = json.dumps(request).encode()
        socket.send_fds(connection, [struct.pack("!I", len(body))], [0, 1, 2])
        connection.sendall(body)
    except (OSError, TimeoutError) as error:
        print(f"no warm start ({error}); going on without", file=sys.stderr)
        return

    def forward(number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            connection.send(bytes([number]))

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, forward)
    status = connection.recv(4)
    code = struct.unpack("!i", status)[0] if len(status) == 4 else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(128 - code if code < 0 else code)


# --- the server's side ---


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request and the three standard streams that come with it."""
    header, fds, _, _ = socket.recv_fds(connection, 4, 3)
    (length,) = struct.unpack("!I", header)
    body = b""
    while len(body) < length:
        part = connection.recv(length - len(body))
        if not part:
            raise OSError("the request broke off")
        body += part
    return json.loads(body), fds


def _watch(connection: socket.socket) -> None:
    """Pass the script's signals on to this process; when the script is gone, so is this process."""
    while True:
        try:
            signals = connection.recv(1)
        except OSError:
            signals = b""
        os.kill(os.getpid(), signals[0] if signals else signal.SIGKILL)


def _become(request: dict[str, Any], fds: list[int], connection: socket.socket) -> NoReturn:
    """Turn this forked process into the job."""
    code = 1
    try:
        for target, source in enumerate(fds):
            os.dup2(source, target)
            os.close(source)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = [request["script"]]
        sys.stdin, sys.stdout, sys.stderr = (
            os.fdopen(fd, mode, closefd=False) for fd, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        threading.Thread(target=_watch, args=(connection,), daemon=True).start()
        runpy.run_path(request["script"], run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
    except BaseException:  # the traceback is the script's, and the server must not see it
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code & 0xFF)


def _reap(jobs: dict[int, socket.socket]) -> None:
    """Tell the script of each job that has ended how it ended."""
    while jobs:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        connection = jobs.pop(pid)
        with contextlib.suppress(OSError):
            connection.sendall(struct.pack("!i", os.waitstatus_to_exitcode(status)))
        connection.close()


def serve(path: Path) -> None:
    """Import the slow packages, then fork a job for each request until idle."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    for package in PACKAGES:
        with contextlib.suppress(ImportError):
            __import__(package)
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    jobs: dict[int, socket.socket] = {}
    busy, open_ = time.monotonic(), True
    while open_ or jobs:
        if open_ and not jobs and time.monotonic() - busy >= IDLE_SECONDS:
            path.unlink(missing_ok=True)  # nobody can come any more, and whoever came just before is still served
            open_ = False
        while selector.select(timeout=0.02):
            connection, _ = listener.accept()
            try:
                request, fds = _receive(connection)
            except (OSError, ValueError, struct.error):
                connection.close()
                continue
            if (pid := os.fork()) == 0:
                listener.close()
                _become(request, fds, connection)
            for fd in fds:
                os.close(fd)
            jobs[pid] = connection
        _reap(jobs)
        if jobs:
            busy = time.monotonic()


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).resolve().parent))  # jobs of other copies of this project come here too
    serve(Path(sys.argv[1]))
