"""`ate image import`: brings an image to this machine's store without a registry."""

from __future__ import annotations

import argparse
from pathlib import Path

import trio

from ate.node.images import import_path


def run(options: argparse.Namespace) -> int:
    """Prints the reference (name@sha256:…) of each image found, one a line: what a template's `image` takes."""
    directory = Path(options.root).absolute() / "images"
    for reference in trio.run(import_path, directory, Path(options.path), options.name):
        print(reference)
    return 0
