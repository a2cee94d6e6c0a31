"""The files of Debian packages, unpacked into a folder without installing anything: what images are made of.

Standard library only, for demos/counter/build_image.py runs with the system's python3 alone.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

_MERGED = ("bin", "sbin", "lib", "lib64")


def unpack(packages: Sequence[str], root: Path) -> None:
    """Unpacks `packages` (names, or `name=version`) of this machine's apt sources into the new folder `root`.

    /bin, /sbin, /lib and /lib64 are links into /usr there, as on a Debian that was installed; no package script runs.
    Raises SystemExit with apt's own words when a package cannot be had.
    """
    with tempfile.TemporaryDirectory(prefix="ate-packages-") as name:
        folder = Path(name)
        folder.chmod(0o777)  # apt drops privileges while it downloads
        done = subprocess.run(["apt-get", "download", "-q", *packages], cwd=folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(
                f"packages of the image cannot be downloaded: {done.stderr.strip()[-1000:]}\n"
                f"run apt-get update, and see that each has a candidate: apt-cache policy {' '.join(packages)}"
            )
        unpacked = folder / "unpacked"  # apart from `root`: dpkg would put folders where the links into /usr are
        for package in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(package), str(unpacked)], check=True)
        root.mkdir()
        for part in _MERGED:
            (root / "usr" / part).mkdir(parents=True)
            (root / part).symlink_to(f"usr/{part}")
        for source in sorted(unpacked.iterdir()):
            target = root / "usr" / source.name if source.name in _MERGED else root / source.name
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
