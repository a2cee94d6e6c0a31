"""The verbs of kubectl-ate: get, create, update, delete, resume, suspend, pause, revert, logs, apply."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from ate.cli import access, manifests, output
from ate.cli.client import Api, open_api
from ate.errors import Aborted, AteError, InvalidArgument, NotFound
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from ate.proto import node_pb2

TYPES = {
    "actor": "Actor", "actors": "Actor",
    "atespace": "Atespace", "atespaces": "Atespace",
    "actor-template": "ActorTemplate", "actor-templates": "ActorTemplate",
    "actortemplate": "ActorTemplate", "actortemplates": "ActorTemplate",
    "tag": "Tag", "tags": "Tag",
    "worker": "Worker", "workers": "Worker",
    "workerpool": "WorkerPool", "workerpools": "WorkerPool",
    "sandboxconfig": "SandboxRuntimeConfig", "sandboxconfigs": "SandboxRuntimeConfig",
}  # fmt: skip
SCOPED = frozenset({"Actor", "ActorTemplate", "Tag"})
LONG = 600.0
"""Seconds a lifecycle verb waits: the longest RPC."""
SHORT = 30.0
APPLY_ATTEMPTS = 6


def run(verb: Callable[[Api, argparse.Namespace], Awaitable[int]], options: argparse.Namespace) -> int:
    """Connects and runs one verb; its exit status."""

    async def main() -> int:
        async with open_api(options) as api:
            return await verb(api, options)

    return trio.run(main)


# -- reading --------------------------------------------------------------------------------------------------------


def _plural(kind: str) -> str:
    return "SandboxConfig" if kind == "SandboxRuntimeConfig" else kind


async def _list(api: Api, kind: str, atespace: str) -> list[Any]:
    noun = _plural(kind)
    stub: Any = api.provider if kind in ("WorkerPool", "SandboxRuntimeConfig") else api.control
    request_type = getattr(pb, f"List{noun}sRequest")
    scope = {"atespace": atespace} if kind in SCOPED else {}
    items: list[Any] = []
    token = ""
    while True:
        answer = await getattr(stub, f"List{noun}s")(
            request_type(page_size=1000, page_token=token, **scope), timeout=SHORT
        )
        items += next(value for field, value in _fields(answer) if field != "next_page_token")
        token = answer.next_page_token
        if not token:
            return items


def _fields(message: Any) -> list[tuple[str, Any]]:
    return [(field.name, getattr(message, field.name)) for field in message.DESCRIPTOR.fields]


async def _get_one(api: Api, kind: str, ref: Ref) -> Any:
    noun = _plural(kind)
    stub: Any = api.provider if kind in ("WorkerPool", "SandboxRuntimeConfig") else api.control
    request_type = getattr(pb, f"Get{noun}Request")
    field = request_type.DESCRIPTOR.fields[0].name
    reference = pb.ObjectRef(atespace=ref.atespace if kind in SCOPED else "", name=ref.name)
    return await getattr(stub, f"Get{noun}")(request_type(**{field: reference}), timeout=SHORT)


class _Failures:
    """Of a verb with several names: each is told at once, the others are still done, and the status says so."""

    def __init__(self) -> None:
        self.status = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, AteError) or isinstance(error, InvalidArgument):
            return False
        print(f"ate: {error.message} ({error.code.name})", file=sys.stderr)
        self.status = 1
        return True


def _say(message: Any, done: str, options: argparse.Namespace) -> None:
    """One line for what was done, or the resource itself in the format that was asked for."""
    if options.output in ("table", "wide"):
        print(f"{output.name(message)} {done}", flush=True)
    else:
        print(output.render([message], options.output, kind=type(message).__name__, single=True), flush=True)


async def get(api: Api, options: argparse.Namespace) -> int:
    """Lists, or shows those named."""
    kind = TYPES[options.type]
    _selector(options.selector)  # wrong words are told before anything is asked
    failures = _Failures()
    if options.names:
        items = []
        for name in options.names:
            with failures:
                items.append(await _get_one(api, kind, ref_of(kind, name, options)))
        if failures.status and not items:
            return failures.status
    else:
        if kind in SCOPED and not options.atespace and not options.all_atespaces:
            raise InvalidArgument(f"which atespace? Give -a ATESPACE, or -A for all ({options.type} live in atespaces)")
        items = await _list(api, kind, "" if options.all_atespaces else options.atespace)
    if kind == "Worker":
        items = [worker for worker in items if _matches(worker, options)]
    if not options.watch:
        if not items and options.output in ("table", "wide"):
            print("No resources found", file=sys.stderr)
            return 0
        print(output.render(items, options.output, kind=kind, single=len(options.names) == 1))
        return failures.status
    return await _watch(api, kind, options)


def _matches(worker: pb.Worker, options: argparse.Namespace) -> bool:
    wanted = _selector(options.selector)
    by_label = all(worker.labels.get(key) == value for key, value in wanted.items())
    return by_label and options.sandbox_class in ("", worker.sandbox_class)


def _selector(text: str) -> dict[str, str]:
    parts = [part.partition("=") for part in text.split(",") if part]
    for key, equals, _ in parts:
        if not key or not equals:
            raise InvalidArgument(f"--selector: {text!r} is not key=value[,key=value]")
    return {key: value for key, _, value in parts}


async def _watch(api: Api, kind: str, options: argparse.Namespace) -> int:
    """Prints the present state, then a line for every change, until interrupted."""
    if kind not in ("Actor", "Worker"):
        raise InvalidArgument(f"-w works for actors and workers, not for {options.type}")
    named = set(options.names)
    first = True
    stub: Any = api.control.WatchActors if kind == "Actor" else api.control.WatchWorkers
    scope = {"atespace": "" if options.all_atespaces else options.atespace} if kind == "Actor" else {}
    request = pb.WatchActorsRequest(**scope) if kind == "Actor" else pb.WatchWorkersRequest()
    async with stub.open() as stream:
        await stream.send_message(request, end=True)
        async for event in stream:
            if event.type == pb.WATCH_EVENT_TYPE_BOOKMARK:
                continue
            item = event.actor if kind == "Actor" else event.worker
            if named and item.metadata.name not in named:
                continue
            text = output.render([item], options.output, kind=kind, single=True)
            lines = text.splitlines()
            if options.output in ("table", "wide") and not first:
                lines = lines[1:]
            first = False
            gone = "   (deleted)" if event.type == pb.WATCH_EVENT_TYPE_DELETED else ""
            print("\n".join(lines) + gone, flush=True)
    return 0


def ref_of(kind: str, name: str, options: argparse.Namespace) -> Ref:
    """`NAME` with -a, or `ATESPACE/NAME`."""
    if kind not in SCOPED:
        return Ref("", name)
    if "/" in name:
        try:
            return Ref.parse(name)
        except ValueError as error:
            raise InvalidArgument(str(error))
    if not options.atespace:
        raise InvalidArgument(f"which atespace? Give -a ATESPACE, or write ATESPACE/{name}")
    return Ref(options.atespace, name)


# -- lifecycle ------------------------------------------------------------------------------------------------------


async def lifecycle(api: Api, options: argparse.Namespace) -> int:
    """resume, suspend, pause and revert."""
    word = options.verb.capitalize()
    failures = _Failures()
    for name in options.names:
        ref = ref_of("Actor", name, options)
        request = getattr(pb, f"{word}ActorRequest")(actor=pb.ObjectRef(atespace=ref.atespace, name=ref.name))
        if options.verb == "resume":
            request.boot = options.boot
        with failures:
            answer = await getattr(api.control, f"{word}Actor")(request, timeout=LONG)
            print(output.render([answer.actor], options.output, kind="Actor", single=True), flush=True)
    return failures.status


async def delete(api: Api, options: argparse.Namespace) -> int:
    kind = TYPES[options.type]
    if not options.names:
        raise InvalidArgument(f"delete {options.type} needs at least one name")
    noun = _plural(kind)
    stub: Any = api.provider if kind in ("WorkerPool", "SandboxRuntimeConfig") else api.control
    request_type = getattr(pb, f"Delete{noun}Request")
    field = request_type.DESCRIPTOR.fields[0].name
    failures = _Failures()
    for name in options.names:
        ref = ref_of(kind, name, options)
        reference = pb.ObjectRef(atespace=ref.atespace if kind in SCOPED else "", name=ref.name)
        extra = {"any_state": True} if kind == "Actor" and options.any_state else {}
        with failures:
            try:
                gone = await getattr(stub, f"Delete{noun}")(request_type(**{field: reference}, **extra), timeout=LONG)
            except NotFound:
                if options.ignore_not_found:
                    continue
                raise
            _say(gone, "deleted", options)
    return failures.status


# -- creating and changing ------------------------------------------------------------------------------------------


async def create(api: Api, options: argparse.Namespace) -> int:
    kind = TYPES[options.type]
    made: Any
    if kind == "Atespace":
        atespace = pb.Atespace(metadata=pb.ResourceMetadata(name=_one_name(options)))
        made = await api.control.CreateAtespace(pb.CreateAtespaceRequest(atespace=atespace), timeout=SHORT)
    elif kind == "Actor":
        made = await _create_actor(api, options)
    elif kind == "Tag":
        made = await _create_tag(api, options)
    elif kind == "ActorTemplate":
        for message in _read_files(options.filename):
            if not isinstance(message, pb.ActorTemplate):
                raise InvalidArgument(
                    "create actor-template takes ActorTemplates only: use `ate apply -f` for the rest"
                )
            request = pb.CreateActorTemplateRequest(actor_template=message)
            made = await api.control.CreateActorTemplate(request, timeout=SHORT)
            _say(made, "created", options)
        return 0
    else:
        raise InvalidArgument(f"create does not take {options.type}: use `ate apply -f FILE`")
    _say(made, "created", options)
    return 0


def _one_name(options: argparse.Namespace) -> str:
    if len(options.names) != 1:
        raise InvalidArgument(f"create {options.type} takes exactly one name")
    return str(options.names[0])


async def _create_actor(api: Api, options: argparse.Namespace) -> pb.Actor:
    ref = ref_of("Actor", _one_name(options), options)
    if not options.template:
        raise InvalidArgument("create actor needs --template ATESPACE/NAME")
    template = ref_of("ActorTemplate", options.template, options)
    actor = pb.Actor(
        metadata=pb.ResourceMetadata(atespace=ref.atespace, name=ref.name),
        actor_template=pb.ObjectRef(atespace=template.atespace, name=template.name),
    )
    if options.tag:
        tag = ref_of("Tag", options.tag, options)
        actor.source_tag.CopyFrom(pb.ObjectRef(atespace=tag.atespace, name=tag.name))
    _set_wake_time(actor, options.wake_at)
    return await api.control.CreateActor(pb.CreateActorRequest(actor=actor), timeout=SHORT)


def _scope(options: argparse.Namespace) -> str:
    return f"TAG_SCOPE_{options.scope.upper()}"


async def _create_tag(api: Api, options: argparse.Namespace) -> pb.Tag:
    ref = ref_of("Tag", _one_name(options), options)
    if not options.actor:
        raise InvalidArgument("create tag needs --actor NAME")
    source = ref_of("Actor", options.actor, options)
    tag = pb.Tag(
        metadata=pb.ResourceMetadata(atespace=ref.atespace, name=ref.name),
        scope=_scope(options),
        source_actor=pb.ObjectRef(atespace=source.atespace, name=source.name),
    )
    return await api.control.CreateTag(pb.CreateTagRequest(tag=tag), timeout=LONG)


async def update(api: Api, options: argparse.Namespace) -> int:
    """Tags: the scope. Actors: template and wake-up time."""
    kind = TYPES[options.type]
    if kind not in ("Tag", "Actor"):
        raise InvalidArgument(f"update does not take {options.type}: use `ate apply -f FILE`")
    ref = ref_of(kind, _one_name(options), options)
    made: Any
    if kind == "Tag":
        if not options.scope:
            raise InvalidArgument("update tag changes --scope: give atespace or published")
        tag = await _get_one(api, "Tag", ref)
        tag.scope = _scope(options)
        made = await api.control.UpdateTag(pb.UpdateTagRequest(tag=tag), timeout=SHORT)
    else:
        if not options.template and not options.wake_at:
            raise InvalidArgument("update actor changes --template or --wake-at: give one of them")
        _set_wake_time(pb.Actor(), options.wake_at)  # wrong words are told before anything is asked
        actor = await _get_one(api, "Actor", ref)
        if options.template:
            template = ref_of("ActorTemplate", options.template, options)
            actor.actor_template.CopyFrom(pb.ObjectRef(atespace=template.atespace, name=template.name))
        _set_wake_time(actor, options.wake_at)
        made = await api.control.UpdateActor(pb.UpdateActorRequest(actor=actor), timeout=SHORT)
    _say(made, "updated", options)
    return 0


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _set_wake_time(actor: pb.Actor, given: str) -> None:
    """`given`: RFC 3339, `+NUMBER` with s, m, h or d, `never`, or empty for no change."""
    if given == "never":
        actor.ClearField("wake_time")
    elif given.startswith("+") and given[1:-1].isdecimal() and given[-1] in _UNITS:
        actor.wake_time.FromNanoseconds(time.time_ns() + int(given[1:-1]) * _UNITS[given[-1]] * 10**9)
    elif given:
        try:
            actor.wake_time.FromJsonString(given)
        except ValueError:
            raise InvalidArgument(f"--wake-at: {given!r} is no time (2026-01-31T08:00:00Z), delay (+5m) or never")


_MOST_TEXT = 4 << 20
"""Characters of one manifest file: far above any that is meant, and read in seconds."""


def _read_files(filenames: list[str]) -> list[Any]:
    if not filenames:
        raise InvalidArgument("give a file with -f FILE (- for standard input)")
    messages: list[Any] = []
    for filename in filenames:
        try:
            text = sys.stdin.read() if filename == "-" else Path(filename).read_text()
        except OSError as error:
            raise InvalidArgument(f"-f {filename}: {error.strerror}")
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"-f {filename}: is not UTF-8 text ({error.reason} at byte {error.start})")
        if len(text) > _MOST_TEXT:
            raise InvalidArgument(f"-f {filename}: is longer than {_MOST_TEXT} characters")
        found = list(manifests.read(text, "standard input" if filename == "-" else filename))
        if not found:
            raise InvalidArgument(f"-f {filename}: holds no documents")
        messages += found
    return messages


async def apply(api: Api, options: argparse.Namespace) -> int:
    """Creates what is not there and brings what is in line with the file."""
    for message in _read_files(options.filename):
        print(f"{output.name(message)} {await _apply(api, message)}", flush=True)
    return 0


_CREATED: dict[type, tuple[str, str]] = {
    pb.Atespace: ("Atespace", "atespace"),
    pb.ActorTemplate: ("ActorTemplate", "actor_template"),
    pb.Actor: ("Actor", "actor"),
    pb.Tag: ("Tag", "tag"),
    pb.WorkerPool: ("WorkerPool", "worker_pool"),
    pb.SandboxRuntimeConfig: ("SandboxConfig", "sandbox_config"),
}


async def _apply(api: Api, message: Any) -> str:
    """What was done. Read and written again when somebody (a controller's report, say) wrote in between."""
    for attempt in range(APPLY_ATTEMPTS):
        try:
            return await _apply_once(api, message)
        except Aborted:
            if attempt == APPLY_ATTEMPTS - 1:
                raise
            await trio.sleep(0.05 * 2**attempt)
    raise AssertionError("not reached")


async def _apply_once(api: Api, message: Any) -> str:
    if isinstance(message, pb.AccessPolicy):
        return await access.apply(api, message)
    noun, field = _CREATED[type(message)]
    kind = type(message).__name__
    stub: Any = api.provider if kind in ("WorkerPool", "SandboxRuntimeConfig") else api.control
    try:
        known = await _get_one(api, kind, Ref(message.metadata.atespace, message.metadata.name))
    except NotFound:
        await getattr(stub, f"Create{noun}")(getattr(pb, f"Create{noun}Request")(**{field: message}), timeout=LONG)
        return "created"
    if kind == "Atespace":
        return "unchanged"
    if kind == "ActorTemplate":
        if _as_stored(message, known):
            return "unchanged"
        raise InvalidArgument(
            f"{output.name(message)} exists and differs: templates never change; create it under another name "
            "and point actors to it, or delete it first"
        )
    fresh = type(message)()
    fresh.CopyFrom(message)
    fresh.metadata.CopyFrom(known.metadata)
    if kind == "Actor" and not fresh.HasField("source_tag") and known.HasField("source_tag"):
        fresh.source_tag.CopyFrom(known.source_tag)
    if known.DESCRIPTOR.fields_by_name.get("status") and known.HasField("status"):
        fresh.status.CopyFrom(known.status)
    if fresh == known:
        return "unchanged"
    await getattr(stub, f"Update{noun}")(getattr(pb, f"Update{noun}Request")(**{field: fresh}), timeout=LONG)
    return "configured"


def _as_stored(given: pb.ActorTemplate, known: pb.ActorTemplate) -> bool:
    """Whether the stored template is the given one with defaults filled in."""
    merged = pb.ActorTemplate()
    merged.CopyFrom(known)
    for name in ("metadata", "status"):
        merged.ClearField(name)
    bare = pb.ActorTemplate()
    bare.CopyFrom(given)
    for name in ("metadata", "status"):
        bare.ClearField(name)
    for descriptor, value in bare.ListFields():
        if descriptor.name == "snapshots_config":
            stored = merged.snapshots_config
            given_config = bare.snapshots_config
            for option in ("on_pause", "on_commit"):
                if not getattr(given_config, option):
                    setattr(given_config, option, getattr(stored, option))
            if not given_config.HasField("on_resume"):
                given_config.on_resume.CopyFrom(stored.on_resume)
        if descriptor.name == "containers":
            for container, other in zip(value, merged.containers, strict=False):
                if container.HasField("readyz") and not container.readyz.http_get.path:
                    container.readyz.http_get.path = other.readyz.http_get.path
    return bare == merged


# -- logs -----------------------------------------------------------------------------------------------------------


async def logs(api: Api, options: argparse.Namespace) -> int:
    """What an actor printed: the message of each line, or the whole JSON with -o json."""
    ref = ref_of("Actor", options.name, options)
    request = node_pb2.ReadActorLogsRequest(
        atespace=ref.atespace, actor_name=ref.name, container=options.container, follow=options.follow
    )
    async with api.logs.ReadActorLogs.open() as stream:
        await stream.send_message(request, end=True)
        async for entry in stream:
            print(entry.line if options.output == "json" else _message(entry.line), flush=True)
    return 0


def _message(line: str) -> str:
    try:
        value = json.loads(line)
    except ValueError:
        return line
    if not isinstance(value, dict):
        return line
    value = {key: item for key, item in value.items() if key not in ("labels", "time")}
    return str(value["message"]) if set(value) == {"message"} else json.dumps(value)
