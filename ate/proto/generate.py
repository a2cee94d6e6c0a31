"""Generates the code of ate/proto from its .proto files; `--check` only tells whether it is fresh.

Run by `make proto` and `make check` with the pinned grpcio-tools.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("ateapi", "atelet", "ateom", "node", "broker", "events", "spiffe_workload")


def generate(into: Path) -> None:
    """Writes `<name>_pb2.py`, `.pyi` and `<name>_grpc.py` for every proto into `into`."""
    from grpc_tools import protoc  # type: ignore[import-untyped]

    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    include = resources.files("grpc_tools") / "_proto"
    status = protoc.main(
        ["protoc", f"-I{HERE}", f"-I{include}", f"--python_out={into}", f"--pyi_out={into}"]
        + [f"--grpclib_python_out={into}"]
        + [f"{name}.proto" for name in NAMES]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")
    for path in into.iterdir():
        if path.suffix not in (".py", ".pyi") or path.name in ("generate.py", "__init__.py"):
            continue
        text = path.read_text()
        for name in NAMES:  # protoc writes top-level imports; ours live in a package
            text = re.sub(rf"^import {name}_pb2", f"from ate.proto import {name}_pb2", text, flags=re.M)
        text = text.replace("channel: grpclib.client.Channel", "channel: typing.Any")  # ours is ate.rpc.Channel
        path.write_text(re.sub(rf"\b({'|'.join(NAMES)})_pb2\.", r"\1_pb2.", text))


def main() -> None:
    if "--check" not in sys.argv:
        generate(HERE)
        return
    with tempfile.TemporaryDirectory() as fresh:
        generate(Path(fresh))
        for path in sorted(Path(fresh).iterdir()):
            kept = HERE / path.name
            if not kept.exists() or kept.read_text() != path.read_text():
                raise SystemExit(f"ate/proto/{path.name} is stale: run `make proto` and commit the result")
    print("generated code is fresh")


if __name__ == "__main__":
    main()
