"""The whole platform under a seeded adversary: invariants hold, the checker notices when they do not, seeds repeat."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.world.mutations import MUTATIONS

SCHEDULES = 1000
ROOT = Path(__file__).parents[2]


def sim(*words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "tests.simulation.sim", *words]
    return subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": "0"})


@pytest.mark.timeout(1500)
def test_no_invariant_breaks_in_a_thousand_schedules() -> None:
    done = sim(f"--n={SCHEDULES}", "--seed=1")
    assert done.returncode == 0 and f"{SCHEDULES} schedules" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", sorted(MUTATIONS))
def test_a_fault_put_in_on_purpose_is_found(mutation: str) -> None:
    done = sim("--n=1000", "--seed=1", "--until-broken", f"--mutation={mutation}")
    assert done.returncode == 1, f"nothing found: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    assert re.search(r"^seed \d+: \d: ", done.stdout, re.M), f"not by an invariant: {done.stdout[-2000:]}"


def test_a_seed_repeats_itself() -> None:
    first, second = (sim("--n=1", "--seed=17", "--trace").stdout.splitlines()[:-1] for _ in range(2))
    assert len(first) > 20 and first == second
