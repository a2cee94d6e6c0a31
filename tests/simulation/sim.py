"""`make sim N=… SEED=…`: runs N schedules from SEED on, and says in one line how many, how long, and how many broke.

    python -m tests.simulation.sim --n 1000 --seed 1 [--jobs 2] [--mutation NAME] [--trace]

Each broken schedule is printed with its seed; `--n 1 --seed S --trace` replays it. Exits with 1 when one broke.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--mutation", default="", help="put this fault into the system, to see that it is found")
    parser.add_argument("--until-broken", action="store_true", help="stop at the first broken schedule")
    parser.add_argument("--trace", action="store_true", help="print what clients and faults did, and all logs")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets of strings would differ from run to run
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.simulation.sim", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    if options.jobs > 1 and options.n > 1 and not options.until_broken:
        return _spread(options)
    return _run(options)


def _run(options: argparse.Namespace) -> int:
    from ate import log
    from tests.simulation.world.mutations import MUTATIONS
    from tests.simulation.world.run import run_schedule

    if options.trace:
        log.setup("info")
    else:
        logging.disable(logging.CRITICAL)
    mutate = MUTATIONS[options.mutation] if options.mutation else None
    began, broken, done = time.monotonic(), 0, 0
    for seed in range(options.seed, options.seed + options.n):
        result = run_schedule(seed, mutate)
        done += 1
        if options.trace:
            print("\n".join(result.trace))
        if result.broken:
            broken += 1
            print(f"seed {seed}: {result.broken}", flush=True)
            if options.until_broken:
                break
    print(f"{done} schedules, {time.monotonic() - began:.0f} seconds, {broken} broken", flush=True)
    return 1 if broken else 0


def _spread(options: argparse.Namespace) -> int:
    """The same, over several processes."""
    began, children = time.monotonic(), []
    share, seed = -(-options.n // options.jobs), options.seed
    while seed < options.seed + options.n:
        n = min(share, options.seed + options.n - seed)
        argv = [
            sys.executable,
            "-m",
            "tests.simulation.sim",
            f"--n={n}",
            f"--seed={seed}",
            "--jobs=1",
            f"--mutation={options.mutation}",
        ]
        children.append((n, subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)))
        seed += n
    broken = done = 0
    for _, child in children:
        *found, last = (child.communicate()[0].strip() or "0 schedules, it died").splitlines()
        print("\n".join(found), end="\n" if found else "")
        broken += len([line for line in found if line.startswith("seed ")]) or int(child.returncode != 0)
        done += int(last.split()[0])
    print(f"{done} schedules, {time.monotonic() - began:.0f} seconds, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
