"""`ate dev`: the whole platform on this machine, every role a process of its own, restarted when it dies.

Ctrl-C (or SIGTERM) suspends the running actors, stops everything and leaves nothing but the data in the root folder;
the next `ate dev` with the same root goes on from there. A role killed in the middle is started again and picks up.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import trio

from ate import install, log, program
from ate.config import DEFAULT_ROOT
from ate.errors import AlreadyExists, AteError, FailedPrecondition, NotFound, PermissionDenied, Unavailable
from ate.names import is_long
from ate.proto import ateapi_pb2 as pb

_log = log.Logger("ate.dev")

ROLES = ("identity-broker", "api", "atelet", "controller", "router")
STOP_GRACE = 120.0
"""Seconds for the controller to suspend all running actors at the end."""
STOP_ATTEMPTS = 3
DEFAULT_CONFIG = "gvisor-default"
DEFAULT_LOOK = 5.0
"""Seconds between looks whether the default runtime is still there."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--root", default=DEFAULT_ROOT, help="folder of this install (default %(default)s)")
    add("--config", help="YAML file with settings, below flags and environment")
    add("--node-name", default="")
    add("--trust-domain", default="cluster.local")
    add("--api-port", default="7443", help="another is taken when it is in use (default %(default)s)")
    add("--router-port", default="8080", help="another is taken when it is in use (default %(default)s)")
    add("--status-port", default="4040", help="another is taken when it is in use (default %(default)s)")
    add("--tunnel-port", default="8443", help="port of the workers' tunnels, each on a loopback address of its own")
    add("--runsc", default="", help="gVisor binary (default: from PATH)")
    add("--image-cache-bytes", default=str(20 << 30), help="unused images go when all take more than this")
    add("--snapshot-cache-bytes", default=str(4 << 30), help="snapshot files kept on the node for fast wake-ups")
    add("--registry-plain-http", action="append", default=[], help="registry host spoken to without TLS; repeatable")
    add("--parked-request-budget", default="5")
    add("--parked-request-max", default="1024")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add(
        "--metrics",
        action="store_true",
        help="serve each role's /metrics, /healthz and /readyz on a free loopback port, noted in endpoints.json",
    )
    add("--die-with-parent", action="store_true", help="end when the process that started this one ends")


@dataclass
class _Role:
    name: str
    argv: list[str]
    process: subprocess.Popen[bytes] | None = None


def run(options: argparse.Namespace) -> int:
    """Runs until stopped; the exit status."""
    log.setup("warning", role="dev")
    if os.geteuid() != 0:
        raise FailedPrecondition("`ate dev` needs root: sandboxes, network namespaces and mounts are made by it")
    if options.die_with_parent:
        program.die_with_parent()
    root = Path(options.root).absolute()
    root.mkdir(parents=True, exist_ok=True)
    (root / "ready").unlink(missing_ok=True)
    lock = os.open(root / "dev.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise FailedPrecondition(f"another `ate dev` runs with --root {root}: stop it first, or choose another root")
    install.install_id(root)
    trio.run(_run, options, root)
    return 0


async def _run(options: argparse.Namespace, root: Path) -> None:
    node = options.node_name or install.node_name()
    assert is_long(node)
    api_port, router_port, status_port = (
        _free_port(int(port)) for port in (options.api_port, options.router_port, options.status_port)
    )
    roles = _roles(options, root, node, api_port, router_port, status_port)
    # One port for all lives of a role, as a scraper expects.
    metrics = {role.name: f"127.0.0.1:{_free_port(0)}" for role in roles} if options.metrics else {}
    for role in roles:
        role.argv += [f"--metrics-listen-addr={metrics[role.name]}"] if metrics else []
    install.write_endpoints(
        root,
        {
            "api": f"127.0.0.1:{api_port}",
            "router": f"127.0.0.1:{router_port}",
            "status": f"127.0.0.1:{status_port}",
            "node": node,
            **{f"metrics-{name}": address for name, address in metrics.items()},
        },
    )
    (root / "logs").mkdir(exist_ok=True)
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            supervisors: dict[str, trio.CancelScope] = {}
            for role in roles:
                supervisors[role.name] = trio.CancelScope()
                nursery.start_soon(_supervise, role, root, supervisors[role.name])
            try:
                with trio.CancelScope() as starting:
                    nursery.start_soon(_announce, options, root, router_port, starting)
                    async for _ in signals:
                        break
            finally:
                print("stopping: suspending running actors", file=sys.stderr, flush=True)
                with trio.CancelScope(shield=True):
                    # The controller needs the others, alive, to put the actors to sleep.
                    for name in ("controller", "router", "atelet", "api", "identity-broker"):
                        supervisors[name].cancel()
                        role = next(role for role in roles if role.name == name)
                        await (_stop_controller(role, root) if name == "controller" else _stop(role))
            nursery.cancel_scope.cancel()
    for name in (install.ENDPOINTS, "ready"):
        (root / name).unlink(missing_ok=True)


def _roles(
    options: argparse.Namespace, root: Path, node: str, api_port: int, router_port: int, status_port: int
) -> list[_Role]:
    common = [
        f"--root={root}", f"--node-name={node}", f"--trust-domain={options.trust_domain}",
        f"--api-address=127.0.0.1:{api_port}", f"--log-level={options.log_level}", "--die-with-parent",
    ]  # fmt: skip
    own = {
        "api": [f"--api-listen=127.0.0.1:{api_port}"],
        "controller": ["--stop-workers", f"--tunnel-port={options.tunnel_port}"],
        "atelet": [
            f"--atelet-listen=127.0.0.1:{_free_port(0)}",  # one for all its lives: callers find it again at once
            f"--snapshot-cache-bytes={options.snapshot_cache_bytes}",
            f"--image-cache-bytes={options.image_cache_bytes}",
            f"--runsc={options.runsc}", *(f"--registry-plain-http={host}" for host in options.registry_plain_http),
        ],
        "router": [
            f"--router-listen=127.0.0.1:{router_port}", f"--status-port={status_port}",
            f"--tunnel-port={options.tunnel_port}", f"--parked-request-budget={options.parked_request_budget}",
            f"--parked-request-max={options.parked_request_max}",
        ],
    }  # fmt: skip
    return [_Role(name, [*program.command(), "serve", f"--role={name}", *common, *own.get(name, [])]) for name in ROLES]


def _free_port(wanted: int) -> int:
    """`wanted` if nobody listens there, else one the kernel picks, said aloud: it may be another install's."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
                found: int = probe.getsockname()[1]
                if wanted and found != wanted:
                    print(f"port {wanted} is in use (by another install?): taking {found} instead", file=sys.stderr)
                return found
            except OSError:
                continue
    raise Unavailable("no free port on 127.0.0.1")


def _start(role: _Role, root: Path) -> subprocess.Popen[bytes]:
    with (root / "logs" / f"{role.name}.log").open("ab") as output:
        role.process = subprocess.Popen(
            role.argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/",
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
        )  # fmt: skip
    return role.process


async def _supervise(role: _Role, root: Path, scope: trio.CancelScope) -> None:
    """Starts the role whenever it is not running, with growing pauses while it dies young."""
    pause = 0.1
    with scope:
        while True:
            started = trio.current_time()
            process = _start(role, root)
            while process.poll() is None:
                await trio.sleep(0.05)
            print(
                f"{role.name} ended with status {process.returncode}, starting it again "
                f"(see {root / 'logs' / (role.name + '.log')})",
                file=sys.stderr,
                flush=True,
            )
            pause = 0.1 if trio.current_time() - started > 10 else min(pause * 2, 5.0)
            await trio.sleep(pause)


async def _stop_controller(role: _Role, root: Path) -> None:
    """Has a controller put the actors to sleep and stop the workers, also where it just died or is only starting."""
    with trio.move_on_after(STOP_GRACE):
        for _ in range(STOP_ATTEMPTS):
            process = role.process
            if process is None or process.poll() is not None:
                process = _start(role, root)
            while process.poll() is None and not _catches_sigterm(process.pid):
                await trio.sleep(0.02)  # before that the signal would only kill it
            process.terminate()
            while process.poll() is None:
                await trio.sleep(0.02)
            if process.returncode == 0:
                return
    _log.warning("the controller did not stop the workers: they run on until the next start")
    if role.process is not None and role.process.poll() is None:
        role.process.kill()
        role.process.wait()


def _catches_sigterm(pid: int) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(caught >> (signal.SIGTERM - 1) & 1)


async def _stop(role: _Role) -> None:
    process = role.process
    if process is None or process.poll() is not None:
        return
    process.terminate()
    with trio.move_on_after(15.0):
        while process.poll() is None:
            await trio.sleep(0.02)
        return
    _log.warning("role did not stop in time and was killed", role_name=role.name)
    process.kill()
    process.wait()


async def _announce(options: argparse.Namespace, root: Path, router_port: int, scope: trio.CancelScope) -> None:
    """Waits until everything answers, installs the default runtime once, and tells the person what to do next."""
    from ate.cli.client import connect
    from ate.node.images import build_pause_image

    while True:
        try:
            async with connect(root, "", options.trust_domain) as api:
                await _ensure_default_config(api.provider, await build_pause_image(root / "images"))
            break
        except AteError as error:
            _log.info("not ready yet", error=error.message)
            await trio.sleep(0.1)
    while True:
        try:
            await (await trio.open_tcp_stream("127.0.0.1", router_port)).aclose()
            break
        except OSError as error:
            _log.info("router not ready yet", error=str(error))
            await trio.sleep(0.05)
    print(
        f"ate is ready. Requests: http://127.0.0.1:{router_port} with the header ate-target-actor: <atespace>/<actor>\n"
        f"Next: `export ATE_ROOT={root}`, `ate apply -f FILE`, `ate get actors -A`. Stop with Ctrl-C.",
        flush=True,
    )
    (root / "ready").write_text("")
    while True:  # whoever deletes the default may not know that templates without a runtime of their own need it
        try:
            async with connect(root, "", options.trust_domain) as api:
                while True:
                    await trio.sleep(DEFAULT_LOOK)
                    await _ensure_default_config(api.provider, await build_pause_image(root / "images"))
        except PermissionDenied:
            return  # an access policy was written, and whoever runs this has no say in it
        except AteError:
            await trio.sleep(DEFAULT_LOOK)


async def _ensure_default_config(provider, pause_image: str) -> None:  # type: ignore[no-untyped-def]
    config = pb.SandboxRuntimeConfig(metadata=pb.ResourceMetadata(name=DEFAULT_CONFIG))
    config.spec.sandbox_class = pb.SANDBOX_CLASS_GVISOR
    config.spec.pause_image = pause_image
    try:
        await provider.GetSandboxConfig(
            pb.GetSandboxConfigRequest(sandbox_config=pb.ObjectRef(name=DEFAULT_CONFIG)), timeout=10
        )
        return
    except NotFound:
        pass
    try:
        await provider.CreateSandboxConfig(pb.CreateSandboxConfigRequest(sandbox_config=config), timeout=10)
    except AlreadyExists:
        pass
