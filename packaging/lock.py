"""Writes requirements.lock and requirements-dev.lock: the exact versions in .venv that pyproject.toml leads to.

    .venv/bin/python packaging/lock.py

To move to newer versions: upgrade them in .venv, run `make test`, then this.
"""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

HERE = Path(__file__).resolve().parents[1]


def closure(wanted: list[str]) -> list[str]:
    """`name==version` of everything the requirements need, directly or not, in this environment."""
    found: dict[str, str] = {}
    waiting = [Requirement(text) for text in wanted]
    seen: set[tuple[str, str]] = set()
    while waiting:
        requirement = waiting.pop()
        for extra in requirement.extras or {""}:
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            distribution = metadata.distribution(requirement.name)
            found[name] = distribution.version
            for text in distribution.requires or []:
                inner = Requirement(text)
                if inner.marker is None or inner.marker.evaluate({"extra": extra}):
                    waiting.append(inner)
    return [f"{name}=={version}" for name, version in sorted(found.items())]


def main() -> None:
    project = tomllib.loads((HERE / "pyproject.toml").read_text())
    runtime: list[str] = project["project"]["dependencies"]
    dev: list[str] = project["dependency-groups"]["dev"]
    header = "# Written by packaging/lock.py; do not edit.\n"
    for name, wanted in (("requirements.lock", runtime), ("requirements-dev.lock", runtime + dev)):
        (HERE / name).write_text(header + "\n".join(closure(wanted)) + "\n")


if __name__ == "__main__":
    main()
