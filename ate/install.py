"""One install: its folder, the id that keeps it apart from others on the machine, and where its parts answer."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path

from ate.files import write_whole

ENDPOINTS = "endpoints.json"
"""Where the roles of this install listen, while it runs."""


def install_id(root: Path) -> str:
    """8 hexadecimal digits, made once; part of every cgroup and interface name of this install."""
    path = root / "install-id"
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        root.mkdir(parents=True, exist_ok=True)
        write_whole(path, secrets.token_hex(4) + "\n", mode=0o644)
        return path.read_text().strip()


def node_name() -> str:
    """This machine's name as a DNS subdomain."""
    name = "".join(c if c.isalnum() or c in "-." else "-" for c in socket.gethostname().lower()).strip("-.")
    return name or "node"


def write_endpoints(root: Path, endpoints: Mapping[str, str]) -> None:
    """Notes where `ate dev` put its parts, for clients that are given only the root."""
    write_whole(root / ENDPOINTS, json.dumps(dict(endpoints)), mode=0o644)


def endpoints(root: Path) -> Mapping[str, str]:
    """What `write_endpoints` noted; empty when there is nothing."""
    try:
        values: Mapping[str, str] = json.loads((root / ENDPOINTS).read_text())
        return values
    except (OSError, ValueError):
        return {}
