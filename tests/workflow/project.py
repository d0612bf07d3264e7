"""A copy of the project with a scale so small that all of it runs in seconds, and what tests do with it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))
RUN = "results/mini/runs/imdb"

SCALE: dict[str, Any] = {
    "scale": "mini",
    "title": "mini scale",
    "device": "cpu",
    "threads": 1,
    "warm_start": True,
    "checkpoint_seconds": 0,
    "datasets": {
        "imdb": {
            "title": "IMDB",
            "source": {"kind": "sample", "path": "resources/sample/imdb.parquet"},
            "label_names": ["negative", "positive"],
            "length": {"min_tokens": 60, "max_tokens": 110, "tokenizer": "whitespace"},
            "max_length": 32,
            "ft_train": 96,
            "attack": 4,
            "validation": 24,
        }
    },
    "models": ["mini-neox"],
    "main_model": "mini-neox",
    "finetune": {"epochs": 1, "learning_rate": 2e-3, "batch_size": 16},
    "scores": {"calibration": 8, "batch_size": 8},
    "evaluation": {"batch_size": 24},
    "theory": {"trials": 20, "examples": 2, "steps": 1},
    "methods": {
        "none": {},
        "r2d2": {
            "rounds": 1, "attacked_per_round": 2, "gcg_start": 1, "gcg_end": 1, "top_k": 4, "candidates": 4,
            "augmented": 8, "steps_per_round": 2, "batch_size": 4,
        },
        "lat": {"attack_layer": "early", "epsilon": 1.0, "steps": 1, "examples": 16, "epochs": 1, "batch_size": 8},
        "lat_reft": {
            "attack_layer": "early", "reft_layer": "middle", "rank": 4, "epsilon": 0.5, "steps": 1,
            "examples": 16, "epochs": 1, "batch_size": 8, "learning_rate": 5e-3,
        },
    },
    "attacks": {
        "gcg": {"rounds": 1, "top_k": 4, "candidates": 4},
        "random_token": {"draws": 4, "batch_size": 4},
    },
    "grids": {"window": [1, 20]},
}  # fmt: skip

MODELS: dict[str, Any] = {
    "mini-neox": {
        "title": "Mini-NeoX",
        "family": "gpt_neox",
        "layers": 2,
        "source": {
            "kind": "random",
            "vocabulary": 300,
            "shape": {
                "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "max_position_embeddings": 64,
            },
        },
        "placements": {"early": 1, "middle": 1, "late": 2},
    },
}  # fmt: skip

EXPERIMENTS: dict[str, Any] = {
    "tables": {
        "main_imdb": {
            "title": "Main result",
            "groups": [
                {"datasets": ["imdb"], "models": "all", "arms": ["none", "lat_reft"], "attacks": ["gcg"]},
                {"datasets": ["imdb"], "models": "all", "arms": ["r2d2"], "attacks": ["random_token", "gcg"]},
            ],
        },
    },
    "figures": {
        "motivation": {
            "title": "Where a defense is placed",
            "groups": [
                {
                    "datasets": ["imdb"],
                    "models": "main",
                    "arms": [
                        {"method": "none", "label": "No defense"},
                        {"method": "lat_reft", "reft_layer": "last", "label": "Last layer"},
                        {"method": "lat_reft", "label": "Suffix window"},
                    ],
                    "attacks": ["gcg"],
                }
            ],
        },
        "placement": {
            "title": "Placement of the defense",
            "groups": [
                {
                    "panel": "window", "datasets": ["imdb"], "models": "main", "arms": ["lat_reft"],
                    "vary": {"window": "window"}, "attacks": ["gcg"],
                }
            ],
        },
        "heatmaps_imdb": {"title": "Neurons kept", "scores": ["imdb"]},
    },
}  # fmt: skip

CLAIMS: dict[str, Any] = {
    "judged_at": ["mini"],
    "arms": {
        "undefended": {"target": "main_imdb", "dataset": "imdb", "label": "none"},
        "trained": {"target": "main_imdb", "dataset": "imdb", "label": "r2d2"},
    },
    "claims": {
        "r2d2_helps": {
            "statement": "R2D2 lowers GCG's success.", "where": "Table 1", "paper": "> 0", "unit": "rate",
            "scales": ["mini"],
            "quantities": {"fall": {"kind": "difference", "arms": ["undefended", "trained"], "of": "gcg"}},
            "reproduced": {"fall": {"clearly_above": 0}},
            "partly": [{"fall": {"above": 0}}],
        },
    },
}  # fmt: skip

ATTACKS = {
    "none": ["gcg"],
    "r2d2": ["random_token", "gcg"],
    "lat_reft": ["gcg"],
    "lat_reft__reft_layer_2": ["gcg"],
    "lat_reft__window_1": ["gcg"],
}
SHOWN = {
    "none": ["table/main_imdb", "figure/motivation", "judge_claims"],
    "r2d2": ["table/main_imdb", "judge_claims"],
    "lat_reft": ["table/main_imdb", "figure/motivation", "figure/placement"],
    "lat_reft__reft_layer_2": ["figure/motivation"],
    "lat_reft__window_1": ["figure/placement"],
}
"""The mini scale's arms: the attacks on each, and what shows it."""
SHOWING = {job for jobs in SHOWN.values() for job in jobs} | {"records"}
EVERYTHING = {
    "prepare_data",
    "fetch_model/mini-neox",
    "finetune/mini-neox",
    "evaluate_classifier/mini-neox",
    "score_neurons/mini-neox",
    "check_theory/mini-neox",
    "figure/heatmaps_imdb",
}


def training(*arms: str) -> set[str]:
    """The jobs that train arms and count their cost."""
    return {f"{rule}/mini-neox/{arm}" for arm in arms for rule in ("train_defense", "count_cost")}


def judging(*arms: str) -> set[str]:
    """The jobs that say what trained arms are worth."""
    attacks = {f"attack/mini-neox/{arm}/{attack}" for arm in arms for attack in ATTACKS.get(arm, ["gcg"])}
    return {f"evaluate_accuracy/mini-neox/{arm}" for arm in arms} | attacks


def showing(*arms: str) -> set[str]:
    """The jobs that show arms."""
    return {"records", *(job for arm in arms for job in SHOWN[arm])}


def redone(*arms: str) -> set[str]:
    """All jobs of arms that are trained anew."""
    return training(*arms) | judging(*arms) | showing(*arms)


EVERYTHING |= redone(*ATTACKS)


class Server:
    """The warm Snakemake command line; see :mod:`snakemake_server`."""

    def __init__(self) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("snakemake_server.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd="/",
        )

    def _ask(self, **request: Any) -> dict[str, int]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer: dict[str, int] = json.loads(self.process.stdout.readline())
        return answer

    def start(self, **request: Any) -> int:
        """Start a run; its process id, which is its group's too."""
        return self._ask(**request)["pid"]

    def wait(self, pid: int) -> int:
        """Wait for a run's end (its timeout kills it); its exit code."""
        return self._ask(pid=pid)["code"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


@dataclass(frozen=True)
class Said:
    """What one call of Snakemake said, and its exit code."""

    code: int
    text: str

    def errors(self) -> list[str]:
        """The lines that tell the user what is wrong."""
        return [line for line in self.text.splitlines() if line.startswith("error: ")]

    @property
    def jobs(self) -> Counter[str]:
        """Jobs by name, ``RULE/WILDCARDS``, of those planned or run; a rule's own job is its output's place."""
        found: Counter[str] = Counter()
        for block in re.split(r"^(?=(?:local)?rule \w+:$)", self.text, flags=re.MULTILINE)[1:]:
            rule = block.split(":", 1)[0].split()[1]
            if rule not in ("all", "tables", "figures", "claims"):
                wildcards = re.search(r"^    wildcards: (.*)$", block, re.MULTILINE)
                values = dict(pair.split("=", 1) for pair in wildcards[1].split(", ")) if wildcards else {}
                keys = ("model", "arm", "attack", "table", "figure")
                found["/".join([rule, *(values[key] for key in keys if key in values)])] += 1
        return found

    @property
    def names(self) -> set[str]:
        """The jobs' names."""
        return set(self.jobs)


@dataclass(frozen=True)
class Run:
    """A call of Snakemake under way, leader of its process group."""

    pid: int
    output: Path
    server: Server

    def end(self) -> Said:
        """Wait for its end."""
        code = self.server.wait(self.pid)
        return Said(code, self.output.read_text(encoding="utf-8", errors="replace"))

    def kill(self) -> Said:
        """Kill it and all of its process group at once."""
        os.killpg(self.pid, signal.SIGKILL)
        return self.end()


@dataclass(frozen=True)
class Project:
    """One copy of the project."""

    folder: Path
    server: Server

    def start(self, *arguments: str, timeout: int = 120, program: str | None = None, **environment: str) -> Run:
        """Start ``snakemake ARGUMENTS``, or another ``program``, in the copy."""
        output = self.folder / ".said"
        pid = self.server.start(
            program=program,
            arguments=list(arguments),
            folder=str(self.folder),
            environment=clean_environment() | environment,
            output=str(output),
            timeout=timeout,
        )
        return Run(pid, output, self.server)

    def __call__(self, *arguments: str, timeout: int = 120, **environment: str) -> Said:
        """Run ``snakemake ARGUMENTS`` in the copy."""
        return self.start(*arguments, timeout=timeout, **environment).end()

    def tool(self, name: str, *arguments: str) -> Said:
        """Run ``tools/NAME.py ARGUMENTS`` in the copy."""
        return self.start(*arguments, timeout=300, program=f"tools/{name}.py").end()

    def run(self, *arguments: str, **environment: str) -> Said:
        """Build ``ARGUMENTS`` (all targets of the mini scale without any)."""
        return self(*(arguments or ("--config", "scale=mini", "--", "all")), **environment)

    def plan(self, *targets: str) -> Said:
        """A dry run of the mini scale."""
        said = self("--config", "scale=mini", "-n", "--", *(targets or ("all",)))
        assert said.code == 0, said.text
        return said

    # --- what tests change and read ---

    def path(self, name: str) -> Path:
        return self.folder / name

    def yaml(self, name: str) -> Any:
        return yaml.safe_load(self.path(name).read_text(encoding="utf-8"))

    def write_yaml(self, name: str, content: Any) -> None:
        self.path(name).write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")

    def change(self, change: Callable[[Any], Any], name: str = "config/mini.yaml") -> None:
        """Change a configuration file in place."""
        content = self.yaml(name)
        change(content)
        self.write_yaml(name, content)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace ``old``, which must be there once, in a file."""
        text = self.path(name).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{name} has {old!r} {text.count(old)} times"
        self.path(name).write_text(text.replace(old, new), encoding="utf-8")

    def append(self, name: str, text: str) -> None:
        with self.path(name).open("a", encoding="utf-8") as handle:
            handle.write(text)

    def state(self) -> dict[str, tuple[int, int]]:
        """Every finished file with its size and time of change."""
        return {
            str(path.relative_to(self.folder)): (path.stat().st_size, path.stat().st_mtime_ns)
            for folder in ("results", "figures")
            for path in sorted(self.path(folder).rglob("*"))
            if path.is_file()
        }


def clean_environment() -> dict[str, str]:
    """The environment of a user's shell, without what the test run itself has put into it."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTEST_CURRENT_TEST")}


def project_files() -> list[str]:
    """The project's files, as a checkout has them: those git knows, and those it would not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=60,
    ).stdout  # fmt: skip
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def new_project(folder: Path, server: Server) -> Project:
    """Copy the project into ``folder`` and give it the mini scale."""
    for name in project_files():
        if not name.startswith(("tests/", "published/", "docs/", "benchmarks/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    project = Project(folder, server)
    project.write_yaml("config/mini.yaml", SCALE)
    project.change(lambda models: models.update(MODELS), "config/models.yaml")
    project.write_yaml("config/experiments.yaml", EXPERIMENTS)
    project.write_yaml("config/claims.yaml", CLAIMS)
    for name in ("smoke", "small"):
        project.path(f"config/{name}.yaml").unlink(missing_ok=True)
    project.path("README.md").touch()
    return project


def copy_project(project: Project, folder: Path) -> Project:
    """A copy with all results, their times kept, so that nothing is to be done in it."""
    subprocess.run(["cp", "-a", f"{project.folder}/.", str(folder)], check=True, timeout=60)
    return Project(folder, project.server)


# --- processes ---


def processes() -> dict[int, tuple[int, str]]:
    """Process id → its session and its command line, of all that live."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, _, _, session = (entry / "stat").read_text().rsplit(") ", 1)[1].split()[:4]
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if state != "Z":
                found[int(entry.name)] = (int(session), command)
    return found


def working_in(folder: Path) -> dict[int, str]:
    """Live processes whose working directory is ``folder``: a copy's jobs, whoever started them."""
    found = {}
    for pid, (_, command) in processes().items():
        try:
            if Path(os.readlink(f"/proc/{pid}/cwd")) == folder:
                found[pid] = command
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait until ``condition`` gives something true, and return that."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("waited in vain")
