"""Steps per second and milliseconds per step, one worker process (experiments A and A2 of the peers' scripts).

    python -m tests.benchmarks.steps [--runs N] [--databases sqlite,postgres]

A: 50 workflows x 20 trivial steps, from the first creation to the last result; once with the creations counted, one
by one, as the peers count them, once created beforehand while no worker ran. A2: one workflow of 200 steps, from
its creation to its result. Prints JSON lines ``{"system", "exp", metrics..., "load1"}`` and a table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.cluster.cluster import ROOT, WorkerProcess, fresh_database, setup, until


def machine() -> str:
    import django

    return f"Python {platform.python_version()}, Django {django.get_version()}, {os.cpu_count()} cores"


def create(count: int, steps: int, sync: bool, tag: str) -> list[Any]:
    from rivet_workflows import client

    return [
        client.create("bench_steps", f"{tag}-{n}", input={"steps": steps, "sync": sync}) for n in range(count)
    ]


def all_done(count: int) -> bool:
    from rivet_workflows.models import Actor
    from rivet_workflows.records import Lifecycle

    return Actor.objects.filter(lifecycle=int(Lifecycle.COMPLETED)).count() >= count


def measure(database: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All experiments on a database of its own, in this process."""
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, fresh_database(database, Path(folder)) as url:
        setup(url)
        log = Path(folder, "worker.log")
        done = 0
        for sync in (False, True):
            kind = "def" if sync else "async"
            total = args.workflows * args.steps

            # Created beforehand: from the first commit of the worker to the end of the last workflow.
            create(args.workflows, args.steps, sync, f"before-{kind}")
            done += args.workflows
            with WorkerProcess(log=log, RIVET_CLUSTER_LOG="WARNING"):
                until(lambda: all_done(done), "A, created beforehand")  # noqa: B023
                results.append(
                    {"exp": "A-before", "kind": kind, "steps_s": round(total / span(args.workflows))}
                )

            with WorkerProcess(log=log, RIVET_CLUSTER_LOG="WARNING"):
                warm = create(1, 2, sync, f"warm-{kind}")[0]
                warm.result(timeout=60)
                done += 1
                began = time.perf_counter()
                create(args.workflows, args.steps, sync, f"counted-{kind}")
                done += args.workflows
                until(lambda: all_done(done), "A")  # noqa: B023
                results.append(
                    {"exp": "A", "kind": kind, "steps_s": round(total / (time.perf_counter() - began))}
                )
                began = time.perf_counter()
                alone = create(1, args.alone, sync, f"alone-{kind}")[0]
                alone.result(timeout=120)
                done += 1
                ms = (time.perf_counter() - began) * 1000 / args.alone
                results.append({"exp": "A2", "kind": kind, "ms_step": round(ms, 3)})
    return results


def span(count: int) -> float:
    """Seconds from the first recorded start to the last recorded end of the youngest ``count`` workflows."""
    from rivet_workflows.models import Actor, History

    ids = list(Actor.objects.order_by("-id").values_list("id", flat=True)[:count])
    times = list(History.objects.filter(actor_id__in=ids).values_list("started_at", "done_at"))
    return (max(end or 0 for _, end in times) - min(start for start, _ in times)) / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--databases", default="sqlite,postgres")
    parser.add_argument("--workflows", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--alone", type=int, default=200)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps([machine(), measure(args.one, args)]))
        return
    about = ""
    found: dict[tuple[str, str, str], list[float]] = {}
    for _ in range(args.runs):
        for database in args.databases.split(","):
            command = [sys.executable, "-m", "tests.benchmarks.steps", "--one", database]
            command += [
                "--workflows",
                str(args.workflows),
                "--steps",
                str(args.steps),
                "--alone",
                str(args.alone),
            ]
            output = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
            about, results = json.loads(output.splitlines()[-1])
            for line in results:
                load = round(os.getloadavg()[0], 2)
                print(json.dumps({"system": f"rivet-{database}", **line, "load1": load}), flush=True)
                value = line.get("steps_s", line.get("ms_step"))
                found.setdefault((database, line["exp"], line["kind"]), []).append(value)
    print(f"\n{about}\n\n| database | experiment | steps | median [lowest to highest] |\n|---|---|---|---|")
    for (database, exp, kind), values in found.items():
        unit = "ms a step" if exp == "A2" else "steps/s"
        print(
            f"| {database} | {exp} | {kind} "
            f"| {statistics.median(values):,} [{min(values):,} to {max(values):,}] {unit} |"
        )


if __name__ == "__main__":
    main()
