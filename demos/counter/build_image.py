"""Builds the counter as an OCI image layout, on this machine, from Debian's packages: no registry, no container engine.

    python3 demos/counter/build_image.py build/counter-image

Two layers: Python from Debian's packages, and the counter. The same packages give the same image.
"""

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))

import debian_files
from oci_image import Layout

PACKAGES = [
    "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib",
    "libc6", "zlib1g", "libexpat1", "libssl3",
]  # fmt: skip
UNNEEDED = [
    "etc", "var", "usr/share", "usr/sbin", "sbin",
    "usr/lib/python3.11/test", "usr/lib/python3.11/ensurepip", "usr/lib/python3.11/pydoc_data",
]  # fmt: skip
NAME = "ate.local/counter"


def main(target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    layout = Layout(target)
    with tempfile.TemporaryDirectory() as folder:
        python, counter = Path(folder) / "python", Path(folder) / "counter"
        put_python(python)
        put_counter(counter)
        layers = [layout.add_layer(python), layout.add_layer(counter)]
    config = {
        "Entrypoint": ["/usr/bin/python3.11", "-S", "/counter.py"],
        "Env": ["PYTHONDONTWRITEBYTECODE=1", "LANG=C.UTF-8"],
        "WorkingDir": "/",
    }
    print(f"{NAME}@{layout.add_image(NAME, layers, config)}")


def put_python(root: Path) -> None:
    debian_files.unpack(PACKAGES, root)
    for name in UNNEEDED:
        path = root / name
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path, ignore_errors=True)
    for name in ("etc", "proc", "sys", "dev", "tmp", "var/lib"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)


def put_counter(root: Path) -> None:
    (root / "var/lib").mkdir(parents=True)
    shutil.copyfile(Path(__file__).parent / "counter.py", root / "counter.py")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/counter-image"))
