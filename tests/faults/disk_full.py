"""A disk that fills up under SQLite, and is freed again, while workers and senders write.

    python -m tests.faults.disk_full [--times 3]

The file lies on a small file system of its own, which takes root to mount (exit code 77 where that cannot be). Nothing
that was acknowledged is lost, the workers wait, and go on by themselves when there is room.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.cluster.cluster import NOT_HERE, play, two_workers
from tests.cluster.load import Load, lost_leases
from tests.waiting import until

SIZE = 24 * 1024 * 1024
LEASE = 20


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rivet-disk-") as name:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "rivet", name], check=True, capture_output=True
        )
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=True)


def fill(disk: Path) -> Path:
    """Take all that is left; the file to remove."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    return ballast


def story(folder: Path, disk: Path, times: int) -> dict[str, Any]:
    log = folder / "log"
    with two_workers(log):
        load = Load(folder)
        load.start()
        for _ in range(times):
            seen = load.refused
            until(lambda: load.created > 5, "there is some work")
            ballast = fill(disk)
            until(lambda seen=seen: load.refused > seen, "a sender is told that the disk is full")  # type: ignore[misc]
            time.sleep(1)  # the fault itself: so long the disk stays full
            ballast.unlink()
            time.sleep(0.5)
        load.finish()
    lost = lost_leases(log)
    found = load.check(lost, database_hurt=True)
    assert "is full" in log.read_text(), "no worker noticed"
    return {"times": times, "leases_lost": len(lost), **found}


def main(times: int) -> int:
    os.environ |= {"RIVET_CLUSTER_LEASE": str(LEASE), "RIVET_CLUSTER_HEARTBEAT": "0.5"}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            disk = stack.enter_context(small_disk())
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"a small file system cannot be mounted here: {error}", file=sys.stderr)
            return NOT_HERE
        return play(f"sqlite:///{disk}/cluster.sqlite3", folder, lambda folder: [story(folder, disk, times)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=3)
    sys.exit(main(parser.parse_args().times))
