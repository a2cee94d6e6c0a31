"""Builds the counter as an OCI image layout, on this machine, from Debian's packages: no registry, no container engine.

    python3 demos/counter/build_image.py build/counter-image

Two layers: Python from Debian's packages, and the counter. The same packages give the same image.
"""

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PACKAGES = [
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
    "libc6", "zlib1g", "libexpat1", "libssl3",
]  # fmt: skip
UNNEEDED = ["usr/share", "usr/lib/python3.11/test", "usr/lib/python3.11/ensurepip", "usr/lib/python3.11/pydoc_data"]
NAME = "ate.local/counter"


def main(target: Path) -> None:
    layout = target
    if layout.exists():
        shutil.rmtree(layout)
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layers = [layer(blobs, python_files), layer(blobs, counter_files)]
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[machine()],
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/python3.11", "-S", "/counter.py"],
            "Env": ["PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"],
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [diff_id for _, diff_id in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob(blobs, json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json"),
        "layers": [descriptor for descriptor, _ in layers],
    }
    described = blob(blobs, json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
    described["annotations"] = {"org.opencontainers.image.ref.name": NAME}
    (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))
    (layout / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
    print(f"{NAME}@{described['digest']}")


def machine() -> str:
    return subprocess.run(["uname", "-m"], check=True, capture_output=True, text=True).stdout.strip()


def blob(blobs: Path, data: bytes, media_type: str) -> dict:
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def layer(blobs: Path, fill) -> tuple[dict, str]:
    """A layer of the files that `fill` puts into a folder, owned by root, with fixed times."""
    plain = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=plain, mode="w") as tar:
        root = Path(folder)
        fill(root)
        for path in sorted(root.rglob("*")):
            info = tar.gettarinfo(path, arcname=str(path.relative_to(root)))
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mtime = 0
            if info.isreg():
                with path.open("rb") as file:
                    tar.addfile(info, file)
            else:
                tar.addfile(info)
    data = plain.getvalue()
    media_type = "application/vnd.oci.image.layer.v1.tar+gzip"
    return blob(blobs, gzip.compress(data, 6, mtime=0), media_type), f"sha256:{hashlib.sha256(data).hexdigest()}"


def python_files(root: Path) -> None:
    for name in ("usr/bin", "usr/lib", "usr/lib64", "etc", "proc", "sys", "dev", "tmp", "var/lib"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    (root / "tmp").chmod(0o1777)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)  # apt drops privileges while it downloads
        subprocess.run(["apt-get", "download", "-q", *PACKAGES], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        unpacked = Path(folder) / "unpacked"
        for deb in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg", "-x", str(deb), str(unpacked)], check=True)
        for name in UNNEEDED:
            shutil.rmtree(unpacked / name, ignore_errors=True)
        for part in ("bin", "lib", "lib64"):
            for source in (unpacked / part, unpacked / "usr" / part):
                if source.is_dir() and not source.is_symlink():
                    shutil.copytree(source, root / "usr" / part, symlinks=True, dirs_exist_ok=True)


def counter_files(root: Path) -> None:
    shutil.copyfile(Path(__file__).parent / "counter.py", root / "counter.py")
    (root / "var/lib").mkdir(parents=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/counter-image"))
