"""Promises about what runs in an actor, on the whole platform: several containers, what they are told and see, volumes,
snapshot scopes, runtimes by URL, limits, and programs that end by themselves.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import trio
from google.protobuf.duration_pb2 import Duration

from ate.errors import AteError, DataLoss, DeadlineExceeded, FailedPrecondition, InvalidArgument
from ate.node.images import import_path
from ate.proto import ateapi_pb2 as pb
from tests.system import workload
from tests.system.conftest import RUNSC_BUILDS
from tests.system.install import Install, joined, running
from tests.system.workload import PROGRAM, PYTHON, container

FULL, DATA = pb.SNAPSHOT_CONTENT_SCOPE_FULL, pb.SNAPSHOT_CONTENT_SCOPE_DATA
WORKERS = 2
Running = tuple[Path, Any]


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    root = tmp_path_factory.mktemp("w") / "root"
    with running(root) as process:

        async def prepare() -> None:
            async with joined(root, process) as install:
                demo = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
                await install.api.control.CreateAtespace(pb.CreateAtespaceRequest(atespace=demo), timeout=30)
                spec = pb.WorkerPoolSpec(replicas=WORKERS)
                pool = pb.WorkerPool(metadata=pb.ResourceMetadata(name="p"), spec=spec)
                await install.api.provider.CreateWorkerPool(pb.CreateWorkerPoolRequest(worker_pool=pool), timeout=30)
                await install.until(lambda: install.ready_workers(WORKERS))

        trio.run(prepare)
        yield root, process


@pytest.fixture
async def install(platform: Running) -> AsyncIterator[Install]:
    """The module's install; what a test made is deleted after it, and every worker must be free then."""
    async with joined(*platform) as found:
        yield found
        listed = await found.api.control.ListActors(pb.ListActorsRequest(atespace="demo"), timeout=30)
        for actor in listed.actors:
            await found.delete(actor.metadata.name)
        await found.until(lambda: all_free(found))


# -- what the tests share -------------------------------------------------------------------------------------------


async def all_free(install: Install) -> bool:
    answer = await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
    return len(answer.workers) == WORKERS and all(not worker.status.allocated.actors for worker in answer.workers)


async def define(
    install: Install, name: str, *containers: pb.Container, golden: bool = True, config: str = "", **fields: Any
) -> pb.ActorTemplate:
    """Creates a template of these containers; with `golden` it is ready to be cloned when this returns."""
    template = install.template(name, f"file://{install.root}/objects")
    del template.containers[:]
    template.containers.extend(containers)
    if config:
        template.sandbox_config.config_name = config
    template.MergeFrom(pb.ActorTemplate(**fields))
    request = pb.CreateActorTemplateRequest(actor_template=template)
    made: pb.ActorTemplate = await install.api.control.CreateActorTemplate(request, timeout=30)
    if golden:
        await install.until(lambda: install.golden(name), 120)
    return made


async def ask(install: Install, name: str, door: str, /, **query: Any) -> dict[str, Any]:
    status, body = await install.raw(name, f"{door}?{urlencode(query)}" if query else door)
    assert status == 200, (status, body)
    answer: dict[str, Any] = json.loads(body)
    return answer


async def pause(install: Install, name: str) -> pb.Actor:
    answer = await install.api.control.PauseActor(pb.PauseActorRequest(actor=install.ref(name)), timeout=120)
    actor: pb.Actor = answer.actor
    return actor


async def import_image(install: Install, layout: Path) -> str:
    (reference,) = await import_path(install.root / "images", layout)
    return reference


async def golden_error(install: Install, name: str) -> str:
    """Why the template has no golden snapshot."""
    found: list[str] = []

    async def check() -> bool:
        request = pb.GetActorTemplateRequest(actor_template=install.ref(name))
        template = await install.api.control.GetActorTemplate(request, timeout=30)
        found[:] = [template.status.golden_snapshot_status.error_message]
        return bool(found[0])

    await install.until(check)
    return found[0]


async def crashed(install: Install, name: str) -> pb.Actor:
    """The actor once it is CRASHED."""

    async def check() -> bool:
        return (await install.get(name)).status.state == pb.ACTOR_STATE_CRASHED

    await install.until(check)
    return await install.get(name)


async def fails_to_start(install: Install, template: str, error: type[AteError], *words: str, rounds: int = 2) -> None:
    """Golden snapshot and actor both fail with these words; then nothing is left, and revert and delete work."""
    said = await golden_error(install, template)
    assert all(word in said for word in words), said
    name = f"{template}-actor"
    await install.add_actor(name, template)
    for _ in range(rounds):  # again after a revert
        with pytest.raises(error) as raised:
            await install.resume(name)
        assert all(word in raised.value.message for word in words), raised.value.message
        actor = await install.get(name)
        assert actor.status.state == pb.ACTOR_STATE_CRASHED and not actor.status.HasField("worker_assignment")
        assert all(word in actor.status.crash.message for word in words)
        assert await all_free(install), "the worker is free again"
        assert not (install.root / "actors" / actor.metadata.uid).exists(), "nothing of it is left on the node"
        reverted = await install.revert(name)
        assert reverted.status.state == pb.ACTOR_STATE_SUSPENDED
    await install.delete(name)


# -- containers -----------------------------------------------------------------------------------------------------


async def test_two_containers_keep_their_memory_through_sleeps_and_pauses(install: Install) -> None:
    await define(install, "two", container("web", install.image), container("side", install.image, port=81))
    await install.add_actor("duo", "two")
    boots: set[tuple[str, str]] = set()

    async def counts(expected: int) -> None:
        web = await install.count("duo")
        side = await ask(install, "duo", "/peer", port=81, path="/")
        assert (web["ram"], side["ram"], side["file"]) == (expected,) * 3
        boots.add((web["boot"], side["boot"]))

    await counts(1)
    for round_ in range(3):
        await install.suspend("duo")
        await counts(2 + round_)
    paused = await pause(install, "duo")
    assert paused.status.state == pb.ACTOR_STATE_PAUSED and await all_free(install)
    await counts(5)
    await pause(install, "duo")
    asleep = await install.suspend("duo")
    assert asleep.status.state == pb.ACTOR_STATE_SUSPENDED and not asleep.status.HasField("local_snapshot")
    await counts(6)
    await install.suspend("duo")
    await counts(7)
    assert len(boots) == 1 and len(set(*boots)) == 2, "two programs, neither ever started anew"


async def test_a_container_that_ends_alone_ends_the_actor_and_is_named(install: Install) -> None:
    await define(install, "half", container("web", install.image), container("side", install.image, port=81))
    await install.add_actor("half-a", "half")
    await install.count("half-a")
    await install.suspend("half-a")
    await install.count("half-a")
    await install.raw("half-a", "/peer?port=81&path=/exit")
    actor = await crashed(install, "half-a")
    assert "side" in actor.status.crash.message, actor.status.crash.message
    await install.revert("half-a")
    assert (await install.count("half-a"))["ram"] == 2


async def test_what_a_container_runs_and_sees_follows_image_then_template(install: Install, tmp_path: Path) -> None:
    config = {
        "Entrypoint": [PYTHON, "-S"],
        "Cmd": ["-c", PROGRAM, "of-the-image"],
        "Env": ["COLOR=image", "SHAPE=image"],
        "WorkingDir": "/srv/app",
    }
    layout = workload.derived_image(tmp_path / "i", "ate.local/resolve", config, {"srv/app/here": "yes"})
    image = await import_image(install, layout)

    def of(name: str, port: int, **fields: Any) -> pb.Container:
        value = container(name, image, port=port, **fields)
        del value.command[:]
        return value

    plain = of("plain", 80)
    args = of("args", 81, args=["-c", PROGRAM, "of-the-template"], env=[pb.EnvVar(name="COLOR", value="template")])
    args.security_context.capabilities.add.extend(["CHOWN", "NET_RAW"])
    command = container("command", image, port=8082)
    command.security_context.capabilities.drop.append("ALL")
    await define(install, "resolve", plain, args, command)
    await install.add_actor("r", "resolve")
    facts = {name: await ask(install, "r", "/peer", port=port, path="/facts") for name, port in (
        ("plain", 80), ("args", 81), ("command", 8082),
    )}  # fmt: skip
    assert facts["plain"]["argv"] == ["-c", "of-the-image"]
    assert facts["args"]["argv"] == ["-c", "of-the-template"]
    assert facts["command"]["argv"] == ["-c"], "a command drops the image's Cmd as well"
    assert {name: (f["env"]["COLOR"], f["env"]["SHAPE"]) for name, f in facts.items()} == {
        "plain": ("image", "image"),
        "args": ("template", "image"),
        "command": ("image", "image"),
    }
    assert all(f["cwd"] == "/srv/app" and f["env"]["PATH"] for f in facts.values())
    default = 1 << 29 | 1 << 5 | 1 << 10  # AUDIT_WRITE, KILL, NET_BIND_SERVICE
    effective = {name: int(f["caps"][0], 16) for name, f in facts.items()}
    assert effective == {"plain": default, "args": default | 1 << 0 | 1 << 13, "command": 0}
    await install.suspend("r")
    assert await ask(install, "r", "/peer", port=81, path="/facts") == facts["args"], "and so it is after a sleep"


async def test_a_container_with_nothing_to_run_says_so(install: Install, tmp_path: Path) -> None:
    image = await import_image(install, workload.derived_image(tmp_path / "i", "ate.local/empty", {}))
    await define(install, "idle", pb.Container(name="nothing", image=image), golden=False)
    await fails_to_start(install, "idle", InvalidArgument, "'nothing'", "ENTRYPOINT", "command")


async def test_a_command_that_is_not_there_is_named(install: Install) -> None:
    missing = pb.Container(name="wrong", image=install.image, command=["/no/such/program"])
    await define(install, "wrong", missing, golden=False)
    await fails_to_start(install, "wrong", AteError, "/no/such/program")


async def test_a_program_that_ends_at_once_is_quoted(install: Install) -> None:
    words = [PYTHON, "-S", "-c", "print('my last words', flush=True); raise SystemExit(4)"]
    value = container("brief", install.image)
    del value.command[:]
    value.command.extend(words)
    await define(install, "brief", value, golden=False)
    await fails_to_start(install, "brief", AteError, "my last words", "before it was ready")


async def test_a_probe_that_never_answers_ends_the_start_with_container_url_and_last_answer(install: Install) -> None:
    value = container("slow", install.image, timeout=4, env=[pb.EnvVar(name="READYZ", value="503")])
    await define(install, "slow", value, golden=False)
    url = "http://169.254.17.2:80/readyz"
    await fails_to_start(install, "slow", DeadlineExceeded, "'slow'", url, "answered 503", "4 s", rounds=1)


# -- volumes and scopes ---------------------------------------------------------------------------------------------


def with_volumes(image: str, tools: str, **fields: Any) -> tuple[pb.Container, list[pb.Volume]]:
    """A container with a durable directory, its own identity as files, and the content of an image."""
    items = [
        pb.ActorMetadataItem(field=pb.ACTOR_METADATA_FIELD_NAME, path="name"),
        pb.ActorMetadataItem(field=pb.ACTOR_METADATA_FIELD_UID, path="ids/uid"),
        pb.ActorMetadataItem(field=pb.ACTOR_METADATA_FIELD_ATESPACE, path="ids/atespace"),
    ]
    source = pb.SystemInfoDataSource(actor_metadata=pb.ActorMetadataSource(items=items))
    volumes = [
        pb.Volume(name="data", durable_dir=pb.DurableDirVolume()),
        pb.Volume(name="me", system_info=pb.SystemInfoVolume(data_sources=[source])),
        pb.Volume(name="tools", image=pb.ImageVolume(reference=tools)),
    ]
    mounts = [("data", "/data"), ("me", "/run/me"), ("tools", "/opt/tools")]
    value = container("c", image, **fields)
    value.volume_mounts.extend(pb.VolumeMount(name=name, mount_path=path) for name, path in mounts)
    return value, volumes


async def tools_image(install: Install, tmp_path: Path) -> str:
    layers = ({"bin/tool": "old", "kept": "below"}, {"bin/tool": "new"})
    return await import_image(install, workload.data_image(tmp_path / "tools", "ate.local/tools", *layers))


async def identity(install: Install, name: str) -> tuple[str, str, str]:
    paths = ("/run/me/name", "/run/me/ids/atespace", "/run/me/ids/uid")
    read = [(await ask(install, name, "/read", path=path))["text"] for path in paths]
    return read[0], read[1], read[2]


async def test_a_clone_reads_its_own_name_and_durable_data_survives(install: Install, tmp_path: Path) -> None:
    value, volumes = with_volumes(install.image, await tools_image(install, tmp_path))
    await define(install, "vol", value, volumes=volumes)
    uids = {}
    for name in ("ada", "bob"):
        uids[name] = (await install.add_actor(name, "vol")).metadata.uid
        assert await identity(install, name) == (name, "demo", uids[name]), "not the golden actor's"
        await ask(install, name, "/append", path="/data/notes", text=f"{name}1 ")
    for round_ in (2, 3):
        for name in ("ada", "bob"):
            await install.suspend(name)
            assert await identity(install, name) == (name, "demo", uids[name])
            answer = await ask(install, name, "/append", path="/data/notes", text=f"{name}{round_} ")
            assert answer["text"] == "".join(f"{name}{n} " for n in range(1, round_ + 1))
    await pause(install, "ada")
    assert (await ask(install, "ada", "/read", path="/data/notes"))["text"] == "ada1 ada2 ada3 "
    assert (await install.count("ada"))["ram"] == 1, "counts are of memory, and memory is there"
    assert (await ask(install, "ada", "/read", path="/opt/tools/bin/tool"))["text"] == "new"
    assert (await ask(install, "ada", "/read", path="/opt/tools/kept"))["text"] == "below"
    status, _ = await install.raw("ada", "/append?path=/opt/tools/kept&text=x")
    assert status != 200, "an image volume cannot be written"
    status, _ = await install.raw("ada", "/append?path=/run/me/name&text=x")
    assert status != 200, "nor can the platform's files"


@pytest.mark.parametrize("base", ["cold", "golden"])
async def test_scope_data_keeps_durable_data_and_nothing_else(install: Install, tmp_path: Path, base: str) -> None:
    value, volumes = with_volumes(install.image, await tools_image(install, tmp_path))
    on_golden = pb.RESUME_SOURCE_GOLDEN if base == "golden" else pb.RESUME_SOURCE_COLD_BOOT
    config = pb.SnapshotsConfig(on_pause=DATA, on_commit=DATA, on_resume=pb.OnResumeConfig(from_data=on_golden))
    await define(install, f"data-{base}", value, volumes=volumes, snapshots_config=config)
    name = f"{base}-d"
    await install.add_actor(name, f"data-{base}")
    boots = []
    for round_, sleep in enumerate((install.suspend, lambda n: pause(install, n), install.suspend), 1):
        answer = await install.count(name)
        assert answer["ram"] == 1, "memory and root file system are fresh"
        boots.append(answer["boot"])
        text = (await ask(install, name, "/append", path="/data/notes", text="x"))["text"]
        assert text == "x" * round_
        await sleep(name)
    await pause_then_suspend(install, name)
    answer = await install.count(name)
    boots.append(answer["boot"])
    assert answer["ram"] == 1
    assert (await ask(install, name, "/read", path="/data/notes"))["text"] == "xxxx"
    assert len(set(boots)) == (1 if base == "golden" else len(boots)), "its memory is the base's, never a former one"


async def pause_then_suspend(install: Install, name: str) -> None:
    await ask(install, name, "/append", path="/data/notes", text="x")
    await pause(install, name)
    await install.suspend(name)


async def test_an_actor_under_another_template_keeps_durable_data_only(install: Install, tmp_path: Path) -> None:
    value, volumes = with_volumes(install.image, await tools_image(install, tmp_path))
    await define(install, "before", value, volumes=volumes)
    value.env.append(pb.EnvVar(name="EDITION", value="second"))
    await define(install, "after", value, volumes=volumes)
    await install.add_actor("moved", "before")
    boot = (await install.count("moved"))["boot"]
    await ask(install, "moved", "/append", path="/data/notes", text="kept")
    actor = await install.suspend("moved")
    actor.actor_template.name = "after"
    actor = await install.api.control.UpdateActor(pb.UpdateActorRequest(actor=actor), timeout=30)
    answer = await install.count("moved")
    assert answer["ram"] == 1 and answer["boot"] != boot
    assert (await ask(install, "moved", "/read", path="/data/notes"))["text"] == "kept"
    assert (await ask(install, "moved", "/facts"))["env"]["EDITION"] == "second"
    await install.suspend("moved")
    assert (await install.count("moved"))["ram"] == 2, "from here on it keeps everything again"
    assert (await ask(install, "moved", "/read", path="/data/notes"))["text"] == "kept"


# -- runtimes -------------------------------------------------------------------------------------------------------


def runtime_config(install: Install, name: str, pause_image: str, *builds: tuple[Path, str]) -> pb.SandboxRuntimeConfig:
    config = pb.SandboxRuntimeConfig(metadata=pb.ResourceMetadata(name=name))
    config.spec.sandbox_class = pb.SANDBOX_CLASS_GVISOR
    config.spec.pause_image = pause_image
    for path, sha256 in builds:
        config.spec.assets["amd64"].files["runsc"].CopyFrom(pb.AssetFile(url=f"file://{path}", sha256=sha256))
    return config


async def test_a_runtime_by_url_runs_and_a_snapshot_keeps_the_runtime_it_was_taken_with(install: Install) -> None:
    newest = RUNSC_BUILDS[-1]
    digest = hashlib.sha256(newest.read_bytes()).hexdigest()
    provider = install.api.provider
    default = await provider.GetSandboxConfig(
        pb.GetSandboxConfigRequest(sandbox_config=pb.ObjectRef(name="gvisor-default")), timeout=30
    )
    pause_image = default.spec.pause_image
    for name, sha256 in (("newest", digest), ("forged", "0" * 64)):
        config = runtime_config(install, name, pause_image, (newest, sha256))
        await provider.CreateSandboxConfig(pb.CreateSandboxConfigRequest(sandbox_config=config), timeout=30)

    await define(install, "forged", container("c", install.image), config="forged", golden=False)
    await fails_to_start(install, "forged", DataLoss, "runsc", digest, "0" * 64)

    await define(install, "newest", container("c", install.image), config="newest")
    await install.add_actor("n", "newest")
    await install.count("n")
    await install.suspend("n")
    assert (await install.count("n"))["ram"] == 2
    assert any(digest in exe for exe in runtimes(install))
    await install.suspend("n")
    kept = install.root / "assets/sha256" / digest / "runsc"
    assert hashlib.sha256(kept.read_bytes()).hexdigest() == digest

    known = await provider.GetSandboxConfig(
        pb.GetSandboxConfigRequest(sandbox_config=pb.ObjectRef(name="newest")), timeout=30
    )
    known.spec.ClearField("assets")  # from now on the node's own
    await provider.UpdateSandboxConfig(pb.UpdateSandboxConfigRequest(sandbox_config=known), timeout=30)
    assert (await install.count("n"))["ram"] == 3, "its snapshot names the runtime it needs"
    assert any(digest in exe for exe in runtimes(install))
    await install.suspend("n")
    assert (await install.count("n"))["ram"] == 4
    await install.suspend("n")

    await install.add_actor("booted", "newest")
    request = pb.ResumeActorRequest(actor=install.ref("booted"), boot=True)
    await install.api.control.ResumeActor(request, timeout=120)
    assert (await install.count("booted"))["ram"] == 1
    own = hashlib.sha256(RUNSC_BUILDS[0].read_bytes()).hexdigest()
    worker = (await install.get("booted")).status.worker_assignment.worker.name
    assert any(own in exe for exe in runtimes(install, worker)), "a boot takes what the config says now"


def runtimes(install: Install, worker: str = "") -> set[str]:
    """Executables of the sandbox processes below the workers (or one worker) of the install."""
    found = set()
    for pid in install.worker_pids(worker) if worker else install.pids("ateom"):
        for below in descendants(pid):
            with suppress(OSError):
                exe = os.readlink(f"/proc/{below}/exe")
                if "runsc" in exe or "memfd" in exe or "assets" in exe:
                    found.add(exe)
    return found


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        now = waiting.pop()
        for task in Path(f"/proc/{now}/task").glob("*/children"):
            with suppress(OSError):
                children = [int(child) for child in task.read_text().split()]
                found.update(children)
                waiting += children
    return found


# -- limits and ends ------------------------------------------------------------------------------------------------


def memory_groups(install: Install) -> list[Path]:
    install_id = (install.root / "install-id").read_text().strip()
    return [path.parent for path in Path("/sys/fs/cgroup").rglob("memory.limit_in_bytes") if install_id in str(path)]


async def epochs(install: Install) -> dict[str, int]:
    answer = await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)
    return {worker.metadata.name: worker.epoch for worker in answer.workers}


async def test_a_memory_limit_holds_and_one_who_breaks_it_crashes_with_a_reason(install: Install) -> None:
    limit = 200 << 20
    resources = pb.Resources(
        limits=[pb.Limits(name="memory", quantity=str(limit)), pb.Limits(name="cpu", quantity="2")]
    )
    await define(install, "small", container("c", install.image), resources=resources)
    await install.add_actor("fat", "small")
    await install.count("fat")
    await install.suspend("fat")
    await install.count("fat")
    limits = {int((group / "memory.limit_in_bytes").read_text()) for group in memory_groups(install)}
    assert limit in limits, "the sandbox's control group has the template's limit"
    before = await epochs(install)
    worker = (await install.get("fat")).status.worker_assignment.worker.name
    status, _ = await install.raw("fat", "/eat?mb=500")
    assert status != 200
    actor = await crashed(install, "fat")
    assert "memory" in actor.status.crash.message, actor.status.crash.message

    async def is_back() -> bool:
        return await all_free(install) and (await epochs(install))[worker] > before[worker]

    await install.until(is_back)
    await install.revert("fat")
    assert (await install.count("fat"))["ram"] == 2


async def test_a_program_that_ends_by_itself_crashes_and_reverts_to_its_last_sleep(install: Install) -> None:
    await define(install, "fickle", container("c", install.image))
    await install.add_actor("f", "fickle")
    await install.count("f")
    await install.suspend("f")
    await install.count("f")
    before = await epochs(install)
    worker = (await install.get("f")).status.worker_assignment.worker.name
    await install.raw("f", "/exit")
    actor = await crashed(install, "f")
    assert actor.status.crash.message and actor.status.external_snapshot.snapshot_uri
    status, body = await install.raw("f")
    assert status == 503 and "revert" in body, "a request is told what to do"
    with pytest.raises(FailedPrecondition, match="revert"):
        await install.resume("f")

    async def is_back() -> bool:
        return await all_free(install) and (await epochs(install))[worker] > before[worker]

    await install.until(is_back)
    await install.revert("f")
    assert (await install.count("f"))["ram"] == 2


async def test_where_the_template_says_so_the_next_request_reverts_and_is_served(install: Install) -> None:
    lifecycle = pb.Lifecycle(on_crash=pb.ON_CRASH_REVERT, drain_grace=Duration(seconds=1))
    await define(install, "phoenix", container("c", install.image), lifecycle=lifecycle)
    await install.add_actor("p", "phoenix")
    await install.count("p")
    await install.suspend("p")
    for expected in (2, 3):
        await install.count("p")
        await install.raw("p", "/exit")
        await crashed(install, "p")
        assert (await install.count("p"))["ram"] == expected
        await install.suspend("p")
        await install.resume("p")


async def test_an_idle_actor_falls_asleep_by_itself_and_a_busy_one_does_not(install: Install) -> None:
    lifecycle = pb.Lifecycle(idle_timeout=Duration(seconds=3), drain_grace=Duration(seconds=1))
    await define(install, "sleepy", container("c", install.image), lifecycle=lifecycle)
    await install.add_actor("i", "sleepy")
    for _ in range(6):  # longer than the timeout, with something every second
        counted = (await install.count("i"))["ram"]
        await trio.sleep(1)
        assert (await install.get("i")).status.state == pb.ACTOR_STATE_RUNNING

    async def asleep() -> bool:
        return (await install.get("i")).status.state == pb.ACTOR_STATE_SUSPENDED

    await install.until(asleep)
    assert (await install.count("i"))["ram"] == counted + 1, "it wakes on the next request, with its memory"
    await install.until(asleep)
