"""The benchmarks, as JSON lines ``{"system", "exp", metrics…, "load1"}`` and a table of medians.

    python -m tests.benchmarks [A,A2,B…] [--databases postgres,sqlite] [--runs N] [--out FILE] [--beside COMMAND]…

Each run takes each database, and each command of ``--beside``, in turn: what is compared meets the same minutes. Such a
command measures another system; it is started with ``RUNS=1`` and appends lines of the same form to the file that
``OUT`` names. ``docs/benchmarks.md`` says what the experiments are.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

from tests.benchmarks.report import table
from tests.cluster.cluster import ROOT, fresh_database, setup

#: Each experiment, by the name it has in the peers' scripts (M, W, P, S and L are ours alone), in the order in which
#: they are run: those that can share a worker come first.
EXPERIMENTS = {
    "M": "machine.allows",
    "A2": "steps.alone",
    "B": "steps.start_to_finish",
    "C": "messages.one_after_the_other",
    "D": "messages.request_and_reply",
    "C1": "messages.to_one",
    "G": "loops.plain",
    "W": "web.callers",
    "L": "loops.long",
    "A": "steps.many",
    "C50": "messages.to_many",
    "S": "scaling.scale",
    "E": "crash.kill",
    "F": "waiting.idle",
    "P": "steps.processes",
}
#: Those that take a minute or many, and run when they are named.
LENGTHY = {"P", "S", "L"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "experiments", nargs="?", default=",".join(e for e in EXPERIMENTS if e not in LENGTHY)
    )
    parser.add_argument("--databases", default="postgres,sqlite")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--out", type=Path, help="append the lines to this file too")
    parser.add_argument("--beside", action="append", default=[], metavar="COMMAND")
    parser.add_argument("--iterations", type=int, default=100_000, help="of L; a million takes half an hour")
    parser.add_argument("--short", action="store_true", help="a little of everything, to see that it works")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    unknown = set(args.experiments.split(",")) - set(EXPERIMENTS)
    if unknown:
        parser.error(f"{', '.join(sorted(unknown))}: the experiments are {', '.join(EXPERIMENTS)}")
    if args.one is not None:
        measure(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = (args.out or Path(folder, "lines.jsonl")).absolute()
        for run in range(args.runs):
            for database in args.databases.split(","):
                measure_apart(args, database, run, out)
            for command in args.beside:
                env = {**os.environ, "OUT": str(out), "RUNS": "1"}
                subprocess.run(command, shell=True, check=True, env=env)
        print(f"\n{machine()}\n\n{table(out)}")


def machine() -> str:
    import django

    return f"Python {platform.python_version()}, Django {django.get_version()}, {os.cpu_count()} cores"


def measure_apart(args: argparse.Namespace, database: str, run: int, out: Path) -> None:
    """One run on one database, in a process of its own, as Django has one setup per process."""
    command = [sys.executable, "-m", "tests.benchmarks", args.experiments]
    command += ["--databases", database, "--one", str(run), "--iterations", str(args.iterations)]
    command += ["--short"] if args.short else []
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
        out.open("a") as file,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            file.write(line)
    if process.returncode:
        sys.exit(process.returncode)


def measure(args: argparse.Namespace) -> None:
    from tests.benchmarks.rig import SHORT, Rig, Sizes

    with tempfile.TemporaryDirectory() as name, fresh_database(args.databases, Path(name)) as url:
        setup(url, "tests.benchmarks.settings")
        rig = Rig(args.databases, Path(name), SHORT if args.short else Sizes(long=args.iterations), args.one)
        try:
            for experiment in args.experiments.split(","):
                module, function = EXPERIMENTS[experiment].split(".")
                getattr(import_module(f"tests.benchmarks.{module}"), function)(rig)
        except BaseException:
            log = Path(name, "worker.log")
            print(log.read_text()[-4000:] if log.exists() else "(no worker wrote a log)", file=sys.stderr)
            raise
        finally:
            rig.close()


if __name__ == "__main__":
    main()
