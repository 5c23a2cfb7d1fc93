"""Break a promise on purpose, in a copy, and see how long its hunter takes to find it."""

from __future__ import annotations

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
CHECKOUT = HERE.parent.parent
#: What a hunter needs of the checkout.
PARTS = ("rivet_workflows", "tests", "demo_project", "pyproject.toml")
#: Seconds of processor time within which each must be found.
LIMIT = 60.0

SIMULATION = (sys.executable, "-m", "tests.simulation", "--shrink", "0")
ON_SQLITE = (*SIMULATION, "--sqlite")


def _test(node: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", node)


@dataclass(frozen=True)
class Breakage:
    """One invariant broken: the patch that does it, and who must notice."""

    invariant: int
    name: str
    hunter: tuple[str, ...]

    @property
    def patch(self) -> Path:
        return HERE / f"{self.invariant:02}-{self.name}.patch"


#: One per invariant. What the store does wrong the simulation sees on a real database alone.
BREAKAGES = [
    Breakage(1, "one-writer", ON_SQLITE),
    Breakage(2, "a-start-is-on-record", SIMULATION),
    Breakage(3, "no-message-is-missed", SIMULATION),
    Breakage(4, "a-send-wakes", ON_SQLITE),
    Breakage(5, "replay-keeps-the-order", SIMULATION),
    Breakage(6, "no-state-is-overwritten", SIMULATION),
    Breakage(7, "timers-are-never-early", SIMULATION),
    Breakage(8, "what-kills-its-process-is-set-aside", SIMULATION),
    Breakage(
        9,
        "nobody-without-an-account",
        _test("tests/api/test_permissions.py::test_without_an_account_nothing_is_reachable"),
    ),
    Breakage(
        10,
        "a-locked-actor-delays-itself-alone",
        _test("tests/worker/test_core.py::test_a_locked_actor_delays_itself_alone"),
    ),
]


@dataclass(frozen=True)
class Found:
    """What came of a hunt. ``seconds`` are the hunter's processor time, ``words`` its last line of importance."""

    found: bool
    seconds: float
    words: str


def apply(patch: Path, where: Path, *, check: bool = False) -> None:
    """Apply a patch, wherever the lines that it changes are now. Raises RuntimeError where it fits no more."""
    options = ["--check"] if check else []
    # Not a part of whatever repository lies around it: there it would be left out without a word.
    env = os.environ | {"GIT_CEILING_DIRECTORIES": str(where.parent)}
    done = subprocess.run(
        ["git", "apply", "-C0", "--verbose", *options, str(patch)],
        cwd=where,
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode or "Skipped" in done.stderr:
        raise RuntimeError(f"{patch.name} does not apply any more: make it anew\n{done.stderr}")


@contextmanager
def copied() -> Iterator[Path]:
    """The checkout's code, to be broken."""
    with tempfile.TemporaryDirectory(prefix="breakage-") as name:
        copy = Path(name) / "copy"
        copy.mkdir()
        for part in PARTS:
            source = CHECKOUT / part
            if source.is_dir():
                shutil.copytree(source, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / part)
        yield copy


def hunt(breakage: Breakage, seed: int, limit: float = LIMIT) -> Found:
    """Let the hunter of a breakage loose on a broken copy."""
    with copied() as copy:
        apply(breakage.patch, copy)
        command = list(breakage.hunter)
        if "tests.simulation" in command:
            command += ["--seed", str(seed), "--runs", "1000000"]
        before, began = _spent(), time.monotonic()
        done = subprocess.run(
            command,
            cwd=copy,
            env=os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            text=True,
            capture_output=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit) + 5)),
        )
        took = _spent() - before
    lines = [line for line in done.stdout.splitlines() if re.match(r"seed \d+:|FAILED", line)]
    words = lines[-1] if lines else (done.stdout + done.stderr).strip()[-500:]
    return Found(done.returncode == 1 and bool(lines), took, f"{words} ({time.monotonic() - began:.0f} s)")


def _spent() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
