"""Activation: from a request for a sleeping actor to its first correct byte, through the whole platform.

Every hop is real: router, api, node agent, ateom, tunnel, each its own process, over mutual TLS. The peer is a bare
`runsc restore` of the same image and program, polled for its first 200, alternating in the same run. Each phase is
measured by itself, the work of a role by its own log and the hops between roles by calls that do nothing, so that what
they do not explain of the time that the client saw shows as a gap. Needs root and runsc. `ratio` is our p95 over the
bare p95.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.bare_restore import Bare
from tests.system.install import Install, open_install

AIM = 1.25
WORST_GAP = 0.05
PAUSE = 1.0  # seconds asleep before each request: an actor that sleeps, not one that blinks


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Phases:
    """Reads what a role logged since the last look."""

    def __init__(self, root: Path) -> None:
        self._paths = {name: root / "logs" / f"{name}.log" for name in ("router", "api", "atelet")}
        self._at = dict.fromkeys(self._paths, 0)

    def take(self, name: str, message: str) -> dict[str, float]:
        """The newest such line's `*_ms` fields."""
        found: dict[str, float] = {}
        with self._paths[name].open() as file:
            file.seek(self._at[name])
            for line in file:
                entry = json.loads(line)
                if entry["message"] == message and any(key.endswith("_ms") for key in entry):
                    found = {key: value for key, value in entry.items() if key.endswith("_ms")}
            self._at[name] = file.tell()
        return found


async def activate(install: Install, name: str, expected: int) -> float:
    """Milliseconds of one request that wakes the actor; it must have counted on."""
    begun = time.perf_counter()
    answer = await install.count(name)
    took = (time.perf_counter() - begun) * 1e3
    assert answer["ram"] == expected, answer
    return took


async def empty_call(install: Install) -> float:
    """Milliseconds of a call over mutual TLS that does next to nothing, after a pause like that of an activation."""
    await trio.sleep(PAUSE)
    begun = time.perf_counter()
    await install.get("a")
    return (time.perf_counter() - begun) * 1e3


async def empty_request(install: Install) -> float:
    """Milliseconds of a request that names no actor, which the router answers by itself, after such a pause."""
    await trio.sleep(PAUSE)
    begun = time.perf_counter()
    status, _ = await install.raw("Nobody")
    assert 400 <= status < 500, status
    return (time.perf_counter() - begun) * 1e3


def merged_root(install: Install, target: Path) -> Path:
    """The image's layers as one folder, for the bare command."""
    layers = json.loads(next((install.root / "actors").glob("*/bundles/counter/rootfs-overlay.json")).read_text())
    target.mkdir()
    for layer in reversed(layers["layers"]):
        subprocess.run(["cp", "-a", f"{layer}/.", str(target)], check=True)
    return target


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runsc", type=Path, default=Path(shutil.which("runsc") or "/usr/bin/runsc"))
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="ate", dir="/tmp"))
    ours: list[float] = []
    bare_times: list[float] = []
    phases: list[dict[str, float]] = []
    gaps: list[float] = []
    try:
        async with (
            open_install(directory / "root", f"--runsc={options.runsc}") as install,
            trio.open_nursery() as nursery,
        ):
            await install.set_up(replicas=2)
            await install.add_actor("a")
            count = 1
            await activate(install, "a", count)
            root = merged_root(install, directory / "merged")
            bare_directory = directory / "bare"
            bare_directory.mkdir()
            argv = ("/usr/bin/python3.11", "-S", "/counter.py")
            bare = Bare(options.runsc, bare_directory, root, argv, "/readyz")
            go, rounds = trio.open_memory_channel[int](0)
            nursery.start_soon(bare.run, rounds, bare_times)
            log = Phases(install.root)
            for number in range(options.rounds):
                await install.suspend("a")
                await go.send(number)  # returns when the round before has ended and this one begins
                while len(bare_times) <= number:
                    await trio.sleep(0.05)
                call, request = await empty_call(install), await empty_request(install)
                await trio.sleep(PAUSE)
                count += 1
                for name, message in (
                    ("router", "route found"),
                    ("api", "Actor state changed"),
                    ("atelet", "Actor restored"),
                ):
                    log.take(name, message)
                took = await activate(install, "a", count)
                await trio.sleep(0.05)
                router, api = log.take("router", "route found"), log.take("api", "Actor state changed")
                atelet = log.take("atelet", "Actor restored")
                parts = {
                    "client to router and back": request,
                    "router to api and back": call,
                    "claim a worker": api["claim_ms"],
                    "api to node and back": call,
                    "prepare files": atelet["prepare_ms"],
                    "restore and gate": atelet["ateom_ms"],
                    "mark running": api["finalize_ms"],
                    "request and answer": router["exchange_ms"],
                }
                ours.append(took)
                phases.append(parts)
                gaps.append(abs(took - sum(parts.values())) / took)
            await go.aclose()
            await install.delete("a")
            nursery.cancel_scope.cancel()
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    for name in phases[0]:
        print(f"{name:24} p50 {statistics.median(p[name] for p in phases):7.1f} ms")
    gap = statistics.median(gaps)
    for name, values in (("ours", ours), ("bare runsc restore", bare_times)):
        print(f"{name:24} p50 {statistics.median(values):7.1f} ms   p95 {percentile(values, 0.95):7.1f} ms")
    ratio = percentile(ours, 0.95) / percentile(bare_times, 0.95)
    figures = {
        "runsc": str(options.runsc),
        "rounds": options.rounds,
        "p50_ms": round(statistics.median(ours), 1),
        "p95_ms": round(percentile(ours, 0.95), 1),
        "bare_p50_ms": round(statistics.median(bare_times), 1),
        "bare_p95_ms": round(percentile(bare_times, 0.95), 1),
        "phases_p50_ms": {name: round(statistics.median(p[name] for p in phases), 1) for name in phases[0]},
        "phases_gap": round(gap, 4),
    }
    line = {"bench": "activation", "figures": figures, "peer": "runsc restore of the same image"}
    print(json.dumps({**line, "ratio": round(ratio, 3), "aim": AIM, "holds": ratio <= AIM and gap <= WORST_GAP}))


if __name__ == "__main__":
    trio.run(main)
