"""Runs one runsc binary: which flags it knows, which tricks this kernel makes necessary, how its output is kept.

The only place that builds a runsc command line. Used by `gvisor.py`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import trio

from ate import log
from ate.errors import DeadlineExceeded, FailedPrecondition
from ate.node.network import interfaces as kernel
from ate.node.sandbox.driver import Stdio
from ate.process import CommandFailed, run

_log = log.Logger(__name__)
_FLAG: Final = re.compile(r"^  -([A-Za-z0-9_-]+)", re.MULTILINE)
_HIDE: Final = 'mount -t tmpfs -o ro none /proc/sys/net && exec "$@"'
_STACK: Final = re.compile(r"\n+(?:goroutine |debug\.|runtime/debug)")
_PROBE_PROGRAM: Final = "/no-such-program"
_ROOT_NS_ERROR: Final = "root network namespace"


@dataclass(frozen=True, slots=True)
class RunscFacts:
    """What was found out about a binary on this kernel; remembered in a file, since finding out takes 0.3 s."""

    version: str
    flags: frozenset[str]
    restore_flags: frozenset[str]
    hides_sysctl_net: bool


class Runsc:
    """One binary with one state directory. `state` must be short: a socket lies in it (108 characters in all).

    `private_mounts`: this process has a mount namespace of its own, so what must be hidden is hidden once, for all
    commands, instead of for each by a wrapper.
    """

    def __init__(
        self,
        binary: Path,
        state: Path,
        *,
        platform: str = "systrap",
        facts_cache: Path | None = None,
        private_mounts: bool = False,
    ) -> None:
        self.binary, self.state, self.platform = binary, state, platform
        self._facts_cache, self._private_mounts = facts_cache, private_mounts
        self._facts: RunscFacts | None = None
        self._probing = trio.Lock()

    async def facts(self) -> RunscFacts:
        """Probes the binary once. FailedPrecondition when it is missing or does not run."""
        if self._facts is None:
            async with self._probing:
                if self._facts is None:
                    facts = self._remembered() or await self._probe()
                    if facts.hides_sysctl_net and self._private_mounts:
                        kernel.mount("none", "/proc/sys/net", "tmpfs", kernel.MS_RDONLY)
                        facts = replace(facts, hides_sysctl_net=False)
                    self._facts = facts
        return self._facts

    async def command(
        self,
        *arguments: str,
        stdio: Stdio | None = None,
        timeout: float = 60.0,
        joining: Sequence[Path] = (),
    ) -> None:
        """Runs `runsc <global flags> <arguments>`; CommandFailed with its words, DeadlineExceeded after `timeout` s.

        A sandbox keeps the descriptors of the command that made it, so its output goes to `stdio` or nowhere, and
        the command's own words to a file. `joining`: cgroup.procs files that the command writes itself into first.
        """
        facts = await self.facts()
        await self._spawn(self._argv(facts, facts.hides_sysctl_net, joining, arguments), arguments, stdio, timeout)

    async def query(self, *arguments: str, timeout: float = 20.0) -> bytes:
        """Standard output of a command that makes no process of its own (state, list, events)."""
        facts = await self.facts()
        return (await run([*self._argv(facts, False, (), arguments), *arguments], timeout=timeout)).stdout

    async def _spawn(self, argv: Sequence[str], arguments: Sequence[str], stdio: Stdio | None, timeout: float) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(dir=self.state, prefix=".log-")
        os.close(number)
        path = Path(name)
        try:
            # -log: what runsc itself says. Its children inherit stdout and stderr, which are the container's.
            full = [*argv, *arguments]
            full[full.index("--root") : full.index("--root")] = ["--log", name, "--log-format", "json"]
            with trio.move_on_after(timeout):
                done = await trio.run_process(
                    full,
                    stdin=subprocess.DEVNULL,
                    stdout=stdio.stdout if stdio else subprocess.DEVNULL,
                    stderr=stdio.stderr if stdio else subprocess.DEVNULL,
                    check=False,
                )
                if done.returncode != 0:
                    raise CommandFailed([self.binary.name, arguments[0]], done.returncode, _words(path))
                return
            raise DeadlineExceeded(f"runsc {arguments[0]} did not end within {timeout:g} s: {_words(path)}")
        finally:
            path.unlink(missing_ok=True)

    def _argv(self, facts: RunscFacts, hide: bool, joining: Sequence[Path], arguments: Sequence[str]) -> list[str]:
        flags = [
            "--root",
            str(self.state),
            f"--platform={self.platform}",
            "--ignore-cgroups",
            "--network=sandbox",
            "--overlay2=root:memory",
        ]
        for name, value in (
            ("net-disconnect-ok", "true"),  # else an open connection makes a checkpoint fail, and the state is lost;
            # keeping them established instead would leave the program with peers that are gone
            ("host-settings", "ignore"),
            ("net-raw", "true"),  # CAP_NET_RAW for containers whose spec adds it, and for no other
        ):
            if name in facts.flags:
                flags.append(f"--{name}={value}")
        command = [str(self.binary), *flags]
        if hide or joining:
            joins = "".join(f"echo $$ > '{path}' && " for path in joining)
            if hide:
                command = ["unshare", "-m", "--propagation", "slave", "sh", "-c", joins + _HIDE, "sh", *command]
            else:
                command = ["sh", "-c", joins + 'exec "$@"', "sh", *command]
        return command

    async def _probe(self) -> RunscFacts:
        try:
            version_text = (await run([str(self.binary), "--version"], timeout=20)).stdout.decode()
        except (OSError, CommandFailed) as error:
            raise FailedPrecondition(f"{self.binary} does not run: {error}; install runsc or name another") from error
        version = version_text.partition("runsc version ")[2].partition("\n")[0].strip()
        flags, restore = await self._listed("flags"), await self._listed("help", "restore")
        facts = RunscFacts(version, flags, restore, hides_sysctl_net=False)
        mistaken: bool | None = False
        if Path("/proc/sys/net/core/rmem_default").exists():
            mistaken = await self._is_mistaken_for_root(facts)
            facts = replace(facts, hides_sysctl_net=bool(mistaken))
        if mistaken is not None:
            self._remember(facts)
        _log.info("runsc probed", binary=str(self.binary), version=version, hides_sysctl_net=facts.hides_sysctl_net)
        return facts

    async def _listed(self, *words: str) -> frozenset[str]:
        """Flags that a help text lists; which of the two outputs it goes to depends on the version."""
        done = await run([str(self.binary), *words], timeout=20, check=False)
        return frozenset(_FLAG.findall((done.stdout + done.stderr).decode()))

    async def _is_mistaken_for_root(self, facts: RunscFacts) -> bool | None:
        """Whether a start in a fresh namespace fails for the reason that hiding /proc/sys/net cures: by trying one.

        None when it failed before it could show that: what is wrong may be mended, so nothing is concluded from it.
        """
        name = f"probe-{os.getpid()}"
        with tempfile.TemporaryDirectory() as bundle:
            (Path(bundle) / "root").mkdir()
            config = {
                "ociVersion": "1.0.2",
                "process": {"user": {"uid": 0, "gid": 0}, "args": [_PROBE_PROGRAM], "cwd": "/"},
                "root": {"path": "root"},
                "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
            }
            (Path(bundle) / "config.json").write_text(json.dumps(config))
            try:
                for words in (("create", "--bundle", bundle, name), ("start", name)):
                    await self._spawn(self._argv(facts, False, (), words), words, None, 20)
            except CommandFailed as error:
                if _ROOT_NS_ERROR in error.stderr:
                    return True
                return False if _PROBE_PROGRAM in error.stderr else None
            finally:
                with trio.CancelScope(shield=True):
                    with trio.move_on_after(20):
                        removal = ("delete", "--force", name)
                        try:
                            await self._spawn(self._argv(facts, False, (), removal), removal, None, 15)
                        except CommandFailed:
                            pass  # it was never made, or its failed start removed it
        return False

    def _fingerprint(self) -> str:
        status = self.binary.stat()
        text = f"{self.binary}|{status.st_ino}|{status.st_size}|{status.st_mtime_ns}|{os.uname().release}|3"
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def _remembered(self) -> RunscFacts | None:
        if self._facts_cache is None:
            return None
        try:
            kept = json.loads((self._facts_cache / f"runsc-{self._fingerprint()}.json").read_text())
            facts = RunscFacts(
                kept["version"],
                frozenset(kept["flags"]),
                frozenset(kept["restore_flags"]),
                # Where it is hidden already (a private mount namespace), there is nothing left to hide.
                kept["hides_sysctl_net"] and Path("/proc/sys/net/core/rmem_default").exists(),
            )
        except (OSError, ValueError, KeyError):
            return None
        return facts

    def _remember(self, facts: RunscFacts) -> None:
        if self._facts_cache is None:
            return
        self._facts_cache.mkdir(parents=True, exist_ok=True)
        target = self._facts_cache / f"runsc-{self._fingerprint()}.json"
        staged = target.with_suffix(f".{os.getpid()}")
        staged.write_text(
            json.dumps(
                {
                    "version": facts.version,
                    "flags": sorted(facts.flags),
                    "restore_flags": sorted(facts.restore_flags),
                    "hides_sysctl_net": facts.hides_sysctl_net,
                }
            )
        )
        staged.rename(target)


@functools.cache
def default_binary() -> Path | None:
    """The runsc on PATH, if any."""
    found = shutil.which("runsc")
    return Path(found) if found else None


def _words(path: Path) -> str:
    """What a failed command said: messages of its JSON log and plain lines, without the stacks of its goroutines."""
    lines = []
    # Its processes write objects into one file, not always with a newline between them.
    for line in path.read_text("utf-8", "replace").replace('}{"msg":', '}\n{"msg":').splitlines():
        try:
            text = str(json.loads(line)["msg"])
        except (ValueError, KeyError, TypeError):
            text = line
        lines.append(_STACK.split(text, maxsplit=1)[0][:1000])
    return "\n".join(line for line in lines if line.strip())
