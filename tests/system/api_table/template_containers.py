"""Containers of a template: every bound of the proto at its edge and one beyond."""

from __future__ import annotations

from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_table.makers import limits
from tests.system.api_table.template_bounds import (
    CONTAINER,
    Bound,
    Build,
    container,
    declare,
    long_image,
    microvm,
    mounts,
    nothing,
)

_CAPS = [f"CAP{number}" for number in range(65)]


def _get(**fields: Any) -> Build:
    return lambda t: t.containers[0].readyz.http_get.MergeFrom(pb.HTTPGetAction(**fields))


def _env(*entries: tuple[str, str]) -> Build:
    return container(lambda c: c.env.extend(pb.EnvVar(name=name, value=value) for name, value in entries))


def _capabilities(**names: list[str]) -> Build:
    return container(lambda c: c.security_context.capabilities.MergeFrom(pb.Capabilities(**names)))


def _both(*builds: Build) -> Build:
    return lambda template: [build(template) for build in builds]


declare(
    (
        Bound(
            "63 characters of a container's name",
            f"{CONTAINER}.name",
            container(lambda c: setattr(c, "name", "c" * 63)),
            container(lambda c: setattr(c, "name", "c" * 64)),
        ),
        Bound("a container's name", f"{CONTAINER}.name", nothing, container(lambda c: setattr(c, "name", ""))),
        Bound(
            "a container not called pause",
            f"{CONTAINER}.name",
            container(lambda c: setattr(c, "name", "pause1")),
            container(lambda c: setattr(c, "name", "pause")),
        ),
        Bound("an image", f"{CONTAINER}.image", nothing, container(lambda c: setattr(c, "image", ""))),
        Bound(
            "512 characters of an image",
            f"{CONTAINER}.image",
            container(lambda c: setattr(c, "image", long_image(512))),
            container(lambda c: setattr(c, "image", long_image(513))),
        ),
        Bound(
            "an image with its digest",
            f"{CONTAINER}.image",
            nothing,
            container(lambda c: setattr(c, "image", "busybox:latest")),
        ),
        Bound(
            "64 words of command",
            f"{CONTAINER}.command",
            container(lambda c: c.command.extend(["x"] * 64)),
            container(lambda c: c.command.extend(["x"] * 65)),
        ),
        Bound(
            "4096 characters of a word of command",
            f"{CONTAINER}.command[0]",
            container(lambda c: c.command.append("x" * 4096)),
            container(lambda c: c.command.append("x" * 4097)),
        ),
        Bound(
            "no NUL in a word of command",
            f"{CONTAINER}.command[0]",
            container(lambda c: c.command.append("x\n")),
            container(lambda c: c.command.append("x\0")),
        ),
        Bound(
            "no NUL in an arg",
            f"{CONTAINER}.args[0]",
            container(lambda c: c.args.append("x\n")),
            container(lambda c: c.args.append("x\0")),
        ),
        Bound("no NUL in a variable", f"{CONTAINER}.env[0].value", _env(("A", "x\n")), _env(("A", "x\0"))),
        Bound(
            "64 args",
            f"{CONTAINER}.args",
            container(lambda c: c.args.extend(["x"] * 64)),
            container(lambda c: c.args.extend(["x"] * 65)),
        ),
        Bound(
            "4096 characters of an arg",
            f"{CONTAINER}.args[0]",
            container(lambda c: c.args.append("x" * 4096)),
            container(lambda c: c.args.append("x" * 4097)),
        ),
        Bound(
            "32 variables",
            f"{CONTAINER}.env",
            _env(*((f"E{n}", "") for n in range(32))),
            _env(*((f"E{n}", "") for n in range(33))),
        ),
        Bound("no variable twice", f"{CONTAINER}.env[1]", _env(("A", ""), ("B", "")), _env(("A", ""), ("A", ""))),
        Bound(
            "256 characters of a variable's name",
            f"{CONTAINER}.env[0].name",
            _env(("A" * 256, "")),
            _env(("A" * 257, "")),
        ),
        Bound("a variable's name", f"{CONTAINER}.env[0].name", _env(("a", "")), _env(("", ""))),
        Bound("no = in a variable's name", f"{CONTAINER}.env[0].name", _env(("A!", "=")), _env(("A=", ""))),
        Bound("printable ASCII in a variable's name", f"{CONTAINER}.env[0].name", _env(("A~", "é")), _env(("é", ""))),
        Bound(
            "32768 characters of a variable",
            f"{CONTAINER}.env[0].value",
            _env(("A", "x" * 32768)),
            _env(("A", "x" * 32769)),
        ),
        Bound(
            "an http_get of readyz",
            f"{CONTAINER}.readyz.http_get",
            nothing,
            container(lambda c: c.readyz.ClearField("http_get")),
        ),
        Bound(
            "3600 seconds of readyz",
            f"{CONTAINER}.readyz.timeout_seconds",
            container(lambda c: setattr(c.readyz, "timeout_seconds", 3600)),
            container(lambda c: setattr(c.readyz, "timeout_seconds", 3601)),
        ),
        Bound(
            "no negative timeout of readyz",
            f"{CONTAINER}.readyz.timeout_seconds",
            container(lambda c: setattr(c.readyz, "timeout_seconds", 0)),
            container(lambda c: setattr(c.readyz, "timeout_seconds", -1)),
        ),
        Bound(
            "1024 characters of readyz's path",
            f"{CONTAINER}.readyz.http_get.path",
            _get(path="/" * 1024),
            _get(path="/" * 1025),
        ),
        Bound("a / before readyz's path", f"{CONTAINER}.readyz.http_get.path", _get(path="/x"), _get(path="x")),
        Bound("no ? in readyz's path", f"{CONTAINER}.readyz.http_get.path", _get(path="/x"), _get(path="/?")),
        Bound("no # in readyz's path", f"{CONTAINER}.readyz.http_get.path", _get(path="/x"), _get(path="/#")),
        Bound("readyz's port up to 65535", f"{CONTAINER}.readyz.http_get.port", _get(port=65535), _get(port=65536)),
        Bound(
            "readyz's port above 0",
            f"{CONTAINER}.readyz.http_get.port",
            _get(port=1),
            container(lambda c: c.readyz.http_get.ClearField("port")),
        ),
        Bound(
            "32 mounts",
            f"{CONTAINER}.volume_mounts",
            mounts(*(f"/m{n}" for n in range(32))),
            mounts(*(f"/m{n}" for n in range(33))),
        ),
        Bound("no mount_path twice", f"{CONTAINER}.volume_mounts[1]", mounts("/a", "/b"), mounts("/a", "/a")),
        Bound(
            "no mount inside another",
            f"{CONTAINER}.volume_mounts[1].mount_path",
            mounts("/a", "/ab"),
            mounts("/a", "/a/b"),
        ),
        Bound(
            "4096 characters of a mount_path",
            f"{CONTAINER}.volume_mounts[0].mount_path",
            mounts("/" + "x" * 4095),
            mounts("/" + "x" * 4096),
        ),
        Bound("a clean mount_path", f"{CONTAINER}.volume_mounts[0].mount_path", mounts("/a/b"), mounts("/a/../b")),
        Bound(
            "no control characters in a mount_path",
            f"{CONTAINER}.volume_mounts[0].mount_path",
            mounts("/a b"),
            mounts("/a\n"),
        ),
        Bound("an absolute mount_path", f"{CONTAINER}.volume_mounts[0].mount_path", mounts("/a"), mounts("a")),
        Bound(
            "a mount of a volume that exists",
            f"{CONTAINER}.volume_mounts[0].name",
            mounts("/a"),
            container(lambda c: c.volume_mounts.add(name="no", mount_path="/a")),
        ),
        Bound(
            "64 added capabilities",
            f"{CONTAINER}.security_context.capabilities.add",
            _capabilities(add=_CAPS[:64]),
            _capabilities(add=_CAPS),
        ),
        Bound(
            "64 dropped capabilities",
            f"{CONTAINER}.security_context.capabilities.drop",
            _capabilities(drop=_CAPS[:64]),
            _capabilities(drop=_CAPS),
        ),
        Bound(
            "no CAP_ before an added capability",
            f"{CONTAINER}.security_context.capabilities.add[0]",
            _capabilities(add=["KILL"]),
            _capabilities(add=["CAP_KILL"]),
        ),
        Bound(
            "no CAP_ before a dropped capability",
            f"{CONTAINER}.security_context.capabilities.drop[0]",
            _capabilities(drop=["KILL"]),
            _capabilities(drop=["CAP_KILL"]),
        ),
        Bound(
            "ALL can be dropped, not added",
            f"{CONTAINER}.security_context.capabilities.add[0]",
            _capabilities(drop=["ALL"]),
            _capabilities(add=["ALL"]),
        ),
        Bound(
            "sizes of containers in micro-VMs only",
            f"{CONTAINER}.resources",
            _both(microvm, container(lambda c: c.resources.CopyFrom(limits(cpu="1")))),
            container(lambda c: c.resources.CopyFrom(limits(cpu="1"))),
        ),
    )
)
