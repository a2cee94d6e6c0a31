"""Where a setting comes from: flag, else environment (ATE_<FLAG>), else the file of --config, else the default."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ate.errors import InvalidArgument

DEFAULT_ROOT = "/var/lib/ate"
API_PORT: Final = 7443
"""Where the api role listens unless told otherwise."""


def file_values(path: str) -> Mapping[str, Any]:
    """The settings of a YAML file: flag names (with `-` or `_`) to values. InvalidArgument when it is unusable."""
    import yaml

    try:
        values = yaml.safe_load(Path(path).read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise InvalidArgument(f"--config {path}: {error}")
    if not isinstance(values, dict):
        raise InvalidArgument(f"--config {path}: must be a mapping of flag names to values")
    return {str(name).replace("-", "_"): value for name, value in values.items()}


def resolve(parser: argparse.ArgumentParser, argv: list[str]) -> None:
    """Replaces the parser's defaults by what environment and file say, so that parsing gives the final values."""
    path = os.environ.get("ATE_CONFIG", "")
    for at, word in enumerate(argv):
        if word == "--config" and at + 1 < len(argv):
            path = argv[at + 1]
        elif word.startswith("--config="):
            path = word.partition("=")[2]
    from_file = file_values(path) if path else {}
    for action in parser._actions:
        if not action.option_strings or action.dest in ("help", "version", "config"):
            continue
        value: Any = os.environ.get("ATE_" + action.dest.upper(), from_file.get(action.dest))
        if value is None:
            continue
        if isinstance(action, argparse._StoreTrueAction):
            value = str(value).lower() in ("1", "true", "yes", "on")
        elif isinstance(action, argparse._AppendAction):
            value = list(value) if isinstance(value, list) else [part for part in str(value).split(",") if part]
        else:
            value = str(value)
            action.required = False
        action.default = value


def host_port(text: str, default_port: int = 0) -> tuple[str, int]:
    """Splits `host:port` (or `host`). InvalidArgument when the port is none."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return text, default_port
    if not port.isdigit() or not 0 <= int(port) <= 65535:
        raise InvalidArgument(f"{text!r} is not host:port")
    return host.strip("[]"), int(port)
