"""Builds the platform's container image as an OCI archive, without a container engine: Debian's files below, ate above.

    .venv/bin/python packaging/image.py dist/ate dist/ate-image.tar

Of Debian there are only the programs that a role starts, and what these load: whoever takes the image apart finds
little, and a fault in a package that is not there needs no new image. The one binary lies unpacked in /opt/ate, so that
no pod unpacks anything when it starts. The same binary and packages give the same bytes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from debian_files import unpack
from oci_image import Layout

NAME = "ate.local/ate"
PROGRAMS = {
    "bin/sh": "dash", "bin/ip": "iproute2", "bin/mount": "mount", "bin/tar": "tar",
    "bin/unshare": "util-linux", "sbin/nft": "nftables", "bin/runsc": "runsc",
}  # fmt: skip
"""What ate starts as other programs (ate/process.py and its callers), below /usr, and where each comes from."""
LIBRARIES = [
    "libc6", "libacl1", "libblkid1", "libbpf1", "libbsd0", "libcap2", "libedit2", "libelf1", "libgmp10", "libjansson4",
    "libmd0", "libmnl0", "libmount1", "libnftables1", "libnftnl11", "libpcre2-8-0", "libselinux1", "libtinfo6",
    "libxtables12", "zlib1g",
]  # fmt: skip
"""Where their libraries are looked for. What nothing loads is left out, what is missing fails the build."""
OTHERS = ["ca-certificates", "base-files"]
FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
FOLDERS = ("dev", "opt", "proc", "root", "run", "sys", "tmp", "usr/local/bin", "var/lib/ate", "var/log", "var/tmp")
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("program", type=Path, help="dist/ate, or a folder with what it unpacks to")
    parser.add_argument("target", type=Path, help="the archive to write")
    options = parser.parse_args()
    started = time.monotonic()
    name, digest = build(options.program, options.target)
    size, took = options.target.stat().st_size, time.monotonic() - started
    print(f"{options.target}: {name}@{digest}, {size / 1e6:.1f} MB compressed, built in {took:.0f} s")


def build(program: Path, target: Path) -> tuple[str, str]:
    """Writes the archive; the name of the image (with the version as its tag) and its digest."""
    with tempfile.TemporaryDirectory(prefix="ate-image-") as temporary:
        work = Path(temporary)
        folder = _unpacked(program, work / "cache")
        words = subprocess.run([folder / "ate", "--version"], check=True, capture_output=True, text=True).stdout
        version = words.split()[1]
        _put_debian_files(work / "debian", folder, work / "base")
        _put_ate(folder, work / "ate")
        layout = Layout(work / "layout")
        layers = [layout.add_layer(work / "base"), layout.add_layer(work / "ate")]
        config = {
            "Entrypoint": ["/usr/bin/ate"],
            # Named for a Python that was not built by Debian, too: it looks elsewhere.
            "Env": [
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                f"SSL_CERT_FILE=/{CERTIFICATES}",
            ],
            "WorkingDir": "/",
        }
        digest = layout.add_image(f"{NAME}:{version}", layers, config)
        target.parent.mkdir(parents=True, exist_ok=True)
        layout.archive(target)
    return f"{NAME}:{version}", digest


def _unpacked(program: Path, cache: Path) -> Path:
    """The folder with the program `ate` in it. The binary's own launcher unpacks it: it alone knows where it begins."""
    if program.is_dir():
        return program
    if not program.is_file():
        raise SystemExit(f"{program} does not exist: make binary builds it")
    environment = {**os.environ, "ATE_CACHE": str(cache)}
    subprocess.run([program.resolve(), "--version"], check=True, stdout=subprocess.DEVNULL, env=environment)
    (folder,) = cache.iterdir()
    return folder


# -- the two layers -----------------------------------------------------------------------------------------------


def _put_debian_files(debian: Path, program: Path, base: Path) -> None:
    """Fills `base` with what the image has of the packages, which are unpacked into `debian`."""
    unpack([*_versioned(PROGRAMS.values()), *LIBRARIES, *OTHERS], debian)
    for relative in needed(debian, program):
        _copy(debian / relative, base / relative)
    for part in ("bin", "sbin", "lib", "lib64"):
        (base / "usr" / part).mkdir(parents=True, exist_ok=True)
        (base / part).symlink_to(f"usr/{part}")
    for folder in FOLDERS:
        (base / folder).mkdir(parents=True, exist_ok=True)
    for folder in ("tmp", "var/tmp"):
        (base / folder).chmod(0o1777)
    for name, text in FILES.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    _copy(debian / "usr/lib/os-release", base / "etc/os-release")
    # Their authors ask that it goes wherever the programs go.
    for path in debian.glob("usr/share/doc/*/copyright"):
        if path.is_file():
            _copy(path.resolve(), base / path.relative_to(debian))
    _put_certificates(debian, base)


def _versioned(packages: Iterable[str]) -> list[str]:
    """runsc in the version that packaging/setup.sh chose: apt alone would take the old one of the plain suite."""
    installed = subprocess.run(
        ["dpkg-query", "-W", "-f=${Version}", "runsc"], capture_output=True, text=True, check=False
    ).stdout
    if not installed:
        raise SystemExit("runsc is not installed, so its version is not known: run packaging/setup.sh run")
    return [f"runsc={installed}" if package == "runsc" else package for package in packages]


def _put_certificates(debian: Path, base: Path) -> None:
    """The bundle that update-ca-certificates would write, and Debian's OpenSSL's own name for it."""
    certificates = sorted((debian / "usr/share/ca-certificates").rglob("*.crt"))
    assert certificates, "ca-certificates holds none"
    (base / CERTIFICATES).parent.mkdir(parents=True)
    (base / CERTIFICATES).write_text("".join(path.read_text().strip() + "\n" for path in certificates))
    (base / "usr/lib/ssl").mkdir()
    (base / "usr/lib/ssl/cert.pem").symlink_to(f"/{CERTIFICATES}")


def _put_ate(program: Path, root: Path) -> None:
    """/opt/ate and its names: PyInstaller's loader finds its folder through links, so no script stands in between."""
    shutil.copytree(program, root / "opt/ate", symlinks=True)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/ate").symlink_to("/opt/ate/ate")
    (root / "usr/bin/kubectl-ate").symlink_to("ate")


# -- which files of Debian ----------------------------------------------------------------------------------------


def needed(debian: Path, program: Path) -> list[Path]:
    """Paths below `debian`: PROGRAMS, and all libraries that these and `program` load, directly or not."""
    own = [path for path in program.rglob("*") if path.is_file() and not path.is_symlink()]
    provided = {path.name for path in own}
    found: dict[Path, None] = {}
    waiting = [debian / "usr" / name for name in PROGRAMS] + own
    seen = set(waiting)
    libraries: dict[str, list[Path]] = {}
    for folder in ("usr/lib", "usr/lib64", *(str(p.relative_to(debian)) for p in debian.glob("usr/lib/*-linux-gnu*"))):
        for path in (debian / folder).glob("*.so*"):
            # In all of its folders: the loader itself is named by its link in lib64.
            libraries.setdefault(path.name, []).append(path)
    while waiting:
        path = waiting.pop()
        if debian in path.parents:
            found[path.relative_to(debian)] = None
        for name in _loads(path):
            if name in provided and program in path.parents:
                continue
            if name not in libraries:
                raise SystemExit(
                    f"{path} loads {name}, which no package of the image has: find its package (dpkg -S {name}) "
                    "and add it to LIBRARIES in packaging/image.py"
                )
            fresh = [library for library in libraries[name] if library not in seen]
            seen.update(fresh)
            waiting += fresh
    return sorted(found)


def _loads(path: Path) -> list[str]:
    """Names of the libraries that a program or library says it loads; none for any other file and for static ones."""
    with path.resolve().open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return []
    done = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True)
    return [line.split()[1] for line in done.stdout.splitlines() if line.strip().startswith("NEEDED ")]


def _copy(source: Path, target: Path) -> None:
    """A file under the one name that is used; links to other versions' names are not kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    target.chmod(0o755 if os.access(source, os.X_OK) else 0o644)


if __name__ == "__main__":
    main()
