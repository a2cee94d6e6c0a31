"""What a bound of a template is, how its rows go, and what several modules of bounds build templates from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, refused
from tests.system.api_table import makers
from tests.system.api_table.makers import DIGEST, MICROVM_CONFIG
from tests.system.api_table.rows import add

Build = Callable[[pb.ActorTemplate], Any]
CONTAINER = "containers[0]"
VOLUME = "volumes[0]"


@dataclass(frozen=True)
class Bound:
    """What makes a sound template reach a bound, what goes beyond, and the path the breach is told with."""

    title: str
    path: str
    within: Build
    beyond: Build


def declare(bounds: Iterable[Bound]) -> None:
    """Adds a row for each."""
    for one in bounds:
        add("CreateActorTemplate", f"{one.title}: the edge is fine, one beyond INVALID_ARGUMENT", partial(keeps, one))


def keeps(limit: Bound, api: Api) -> None:
    space = api.atespace()
    within, beyond = (makers.template(api.location, space, name) for name in ("within", "beyond"))
    limit.within(within)
    limit.beyond(beyond)
    with refused("INVALID_ARGUMENT", f"actor_template.{limit.path}:"):
        api.user("CreateActorTemplate", actor_template=beyond)
    made = api.user("CreateActorTemplate", actor_template=within)
    assert [container.name for container in made.containers] == [container.name for container in within.containers]


def nothing(template: pb.ActorTemplate) -> None:
    """The sound template itself."""


def container(change: Callable[[pb.Container], Any]) -> Build:
    return lambda template: change(template.containers[0])


def mount(template: pb.ActorTemplate, *paths: str, name: str = "v") -> None:
    """A volume of one file, mounted at every path."""
    source = pb.SystemInfoDataSource(
        actor_metadata=pb.ActorMetadataSource(items=[pb.ActorMetadataItem(field=1, path="f")])
    )
    template.volumes.add(name=name, system_info=pb.SystemInfoVolume(data_sources=[source]))
    for path in paths:
        template.containers[0].volume_mounts.add(name=name, mount_path=path)


def mounts(*paths: str) -> Build:
    return lambda template: mount(template, *paths)


def microvm(template: pb.ActorTemplate) -> None:
    template.sandbox_config.CopyFrom(
        pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_MICROVM, config_name=MICROVM_CONFIG)
    )


def long_image(length: int) -> str:
    return "i" * (length - len(DIGEST)) + DIGEST
