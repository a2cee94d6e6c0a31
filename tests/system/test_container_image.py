"""Promises of the platform's container image: the same inputs make the same bytes, and what a role starts runs in it.

The image is that of `make image`; it is built here only when it is older than the binary or than what builds it, and
the binary only when there is none.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ate.node.images import import_path
from tests.system.install import REPOSITORY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="containers, and unpacking owners, need root")

BINARY, ARCHIVE = REPOSITORY / "dist/ate", REPOSITORY / "dist/ate-image.tar"
BUILDER = REPOSITORY / "packaging/image.py"
STARTED = ("ate", "kubectl-ate", "runsc", "ip", "nft", "tar", "mount", "unshare")
"""The programs of the image that can say their version."""


@pytest.fixture(scope="module")
def archive() -> Path:
    if not BINARY.exists():
        subprocess.run([REPOSITORY / "packaging/binary.sh"], check=True)
    sources = [BINARY, *(BUILDER.with_name(name) for name in ("image.py", "oci_image.py", "debian_files.py"))]
    if not ARCHIVE.exists() or ARCHIVE.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        subprocess.run([sys.executable, BUILDER, BINARY, ARCHIVE], check=True)
    return ARCHIVE


@pytest.fixture
def ctr(short_dir: Path) -> Iterator[Callable[..., str]]:
    """`ctr` of a containerd of our own; returns what it prints. Containers go with it."""
    for program in ("containerd", "ctr", "runc"):
        assert shutil.which(program), f"{program} is not installed: packaging/setup.sh test installs it"
    (short_dir / "containerd.toml").write_text(
        # No kubelet speaks to it, and it shall not make /opt/containerd.
        f"""version = 2
root = "{short_dir}/root"
state = "{short_dir}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.internal.v1.opt"]
[grpc]
  address = "{short_dir}/sock"
"""
    )
    with (short_dir / "log").open("wb") as output:
        process = subprocess.Popen(["containerd", "-c", short_dir / "containerd.toml"], stdout=output, stderr=output)

    def run(*words: str | Path) -> str:
        argv = ["ctr", "-a", short_dir / "sock", "-n", "k8s.io", *words]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (words, done.stdout, done.stderr)
        return done.stdout

    try:
        deadline = time.monotonic() + 20
        while not (short_dir / "sock").exists():
            assert process.poll() is None and time.monotonic() < deadline, (short_dir / "log").read_text()
            time.sleep(0.02)
        yield run
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
    assert str(short_dir) not in Path("/proc/mounts").read_text(), "a container of the test is still there"


def named(archive: Path) -> tuple[str, str]:
    """Name and digest of the one image in the archive."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile("index.json")
        assert file is not None
        (entry,) = json.load(file)["manifests"]
    names = {entry["annotations"][key] for key in ("io.containerd.image.name", "org.opencontainers.image.ref.name")}
    (name,) = names
    return name, entry["digest"]


def stand_in(folder: Path) -> Path:
    """A folder that looks like the unpacked binary to the builder."""
    (folder / "_internal").mkdir(parents=True)
    (folder / "_internal/data").write_bytes(b"data" * 1024)
    (folder / "ate").write_text("#!/bin/sh\necho ate 1.2.3\n")
    (folder / "ate").chmod(0o755)
    return folder


def test_containerd_names_the_image_and_every_program_of_it_runs(archive: Path, ctr: Callable[..., str]) -> None:
    name, digest = named(archive)
    ctr("images", "import", archive)
    assert ctr("images", "ls", "-q").split() == [name]
    assert digest in ctr("images", "ls")
    version = name.removeprefix("ate.local/ate:")
    tell = [f"for program in {' '.join(STARTED)}; do"]
    tell += ["$program $([ $program = ip ] || [ $program = nft ] && echo -V || echo --version) || exit; done"]
    said = ctr("run", "--rm", "--net-host", name, f"versions-{os.getpid()}", "sh", "-c", " ".join(tell)).splitlines()
    for expected in ("runsc version", "ip utility", "nftables v", "tar (GNU tar)", "mount from", "unshare from"):
        assert any(line.startswith(expected) for line in said), (expected, said)
    assert said.count(f"ate {version}") == 2, said
    # With no command of its own a container runs the entrypoint, which asks for a verb.
    with pytest.raises(AssertionError, match="usage: ate"):
        ctr("run", "--rm", "--net-host", name, f"entry-{os.getpid()}")


async def test_our_own_importer_takes_the_archive(archive: Path, tmp_path: Path) -> None:
    _, digest = named(archive)
    assert await import_path(tmp_path / "images", archive) == [f"ate.local/ate@{digest}"]


def test_the_same_inputs_make_the_same_archive(tmp_path: Path) -> None:
    """Whatever the umask, the times of the files, the folder they lie in, and the seed of Python's hashes."""
    first, second = stand_in(tmp_path / "a"), stand_in(tmp_path / "deeper/b")
    os.utime(second / "ate", (1, 1))
    # With the shell alone of the programs: to compress runsc twice would take as long as everything else.
    small = "import image; image.PROGRAMS = {'bin/sh': 'dash'}; image.main()"
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", small, folder, tmp_path / f"{seed}.tar"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(BUILDER.parent)},
            umask=umask,
            stdout=subprocess.PIPE,
            text=True,
        )
        for folder, seed, umask in ((first, "1", 0o022), (second, "2", 0o077))
    ]
    said = [build.communicate(timeout=120)[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0]
    assert (tmp_path / "1.tar").read_bytes() == (tmp_path / "2.tar").read_bytes(), said
    assert named(tmp_path / "1.tar")[0] == "ate.local/ate:1.2.3"


def test_a_library_that_no_package_brings_fails_the_build_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BUILDER.parent))
    builder = importlib.import_module("image")
    program = stand_in(tmp_path / "program")
    shutil.copy("/usr/bin/openssl", program / "_internal/openssl")
    for name in builder.PROGRAMS:
        path = tmp_path / "debian/usr" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("no program, loads nothing")
    with pytest.raises(SystemExit, match=r"_internal/openssl loads lib\S+, which no package of the image has"):
        builder.needed(tmp_path / "debian", program)
