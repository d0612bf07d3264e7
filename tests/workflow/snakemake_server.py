"""Runs Snakemake's command line, and the project's tools, again and again, their slow imports paid once.

One JSON request a line on stdin: ``program`` (a script, or null for Snakemake), ``arguments``, ``folder``,
``environment``, ``output`` (a file for stdout and stderr) and ``timeout`` (seconds) start a run, answered with ``pid``;
``pid`` waits for its end, answered with ``code``. Each run is a forked process and a session of its own, and imports the
project afresh from the folder it runs in.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import sys

PACKAGES = (
    "snakemake.cli",
    "snakemake.assets",
    "snakemake.script",
    "snakemake.report.html_reporter",
    "snakemake.executors.local",
    "requests",
    "smart_open",
    "nbformat",
    "pygments.formatters",
    "numpy",
    "pandas",
    "pyarrow.parquet",
    "statsmodels.stats.proportion",
    "pydantic",
    "torch.utils.flop_counter",
    "transformers.utils.logging",
    "filelock",
    "tqdm",
    "yte",
)


def run(request: dict) -> None:
    """Become the requested command; never returns."""
    code = 1
    try:
        os.setsid()
        signal.alarm(request["timeout"])
        output = os.open(request["output"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["folder"])
        sys.argv = [request["program"] or "snakemake", *request["arguments"]]
        if request["program"]:
            runpy.run_path(request["program"], run_name="__main__")
        else:
            from snakemake.cli import main

            main()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    """Answer requests, one at a time, until stdin is closed."""
    for package in PACKAGES:
        importlib.import_module(package)
    for line in sys.stdin:
        request = json.loads(line)
        if "pid" in request:
            answer = {"code": os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])}
        elif (pid := os.fork()) == 0:
            run(request)
        else:
            answer = {"pid": pid}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
