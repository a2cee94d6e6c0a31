"""Promises of the OCI config: what runs, as whom, with which environment, and where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ate.errors import InvalidArgument
from ate.node.sandbox import oci_spec
from ate.node.sandbox.oci_spec import ImageConfig, Mount, Process

IMAGE = ImageConfig(entrypoint=("/entry",), cmd=("default",), env=("PATH=/image", "A=image", "B=image"))
words = st.lists(st.text("abc", min_size=1), max_size=3).map(tuple)


@pytest.mark.parametrize(
    ("command", "args", "image", "expected"),
    [
        ((), (), IMAGE, ("/entry", "default")),
        ((), ("mine",), IMAGE, ("/entry", "mine")),
        (("/other",), (), IMAGE, ("/other",)),
        (("/other",), ("mine",), IMAGE, ("/other", "mine")),
        ((), (), ImageConfig(cmd=("only",)), ("only",)),
    ],
)
def test_command_replaces_entrypoint_and_cmd_and_args_replace_cmd(
    command: tuple[str, ...], args: tuple[str, ...], image: ImageConfig, expected: tuple[str, ...]
) -> None:
    assert oci_spec.argv(Process("app", command=command, args=args), image) == expected


def test_nothing_to_run_is_an_error_that_names_the_container_and_says_what_to_do() -> None:
    with pytest.raises(InvalidArgument, match=r"'app'.*set `command`"):
        oci_spec.build(Process("app"), ImageConfig())


@given(command=words, args=words, entrypoint=words, cmd=words)
def test_a_config_always_has_something_to_run(
    command: tuple[str, ...], args: tuple[str, ...], entrypoint: tuple[str, ...], cmd: tuple[str, ...]
) -> None:
    process, image = Process("app", command=command, args=args), ImageConfig(entrypoint, cmd)
    if command or args or entrypoint or cmd:
        assert oci_spec.build(process, image)["process"]["args"]
    else:
        with pytest.raises(InvalidArgument):
            oci_spec.build(process, image)


def test_template_wins_over_image_wins_over_the_default_path() -> None:
    assert oci_spec.environment(Process("app"), ImageConfig()) == [f"PATH={oci_spec.DEFAULT_PATH}"]
    process = Process("app", env=(("A", "template"), ("C", "x=y"), ("A", "last")))
    assert oci_spec.environment(process, IMAGE) == ["PATH=/image", "A=last", "B=image", "C=x=y"]


@pytest.mark.parametrize(
    ("add", "drop", "expected"),
    [
        ([], [], ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]),
        (["net_raw"], ["CAP_KILL"], ["CAP_AUDIT_WRITE", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW"]),
        (["KILL"], ["ALL"], ["CAP_KILL"]),
        (["KILL"], ["KILL"], ["CAP_AUDIT_WRITE", "CAP_KILL", "CAP_NET_BIND_SERVICE"]),
    ],
)
def test_capabilities_are_dropped_first_and_added_then(add: list[str], drop: list[str], expected: list[str]) -> None:
    assert oci_spec.capabilities(add, drop) == expected


def test_pause_has_no_capabilities_and_nothing_is_ambient_or_inheritable() -> None:
    assert set(map(tuple, oci_spec.build_pause()["process"]["capabilities"].values())) == {()}
    assert set(oci_spec.build(Process("app", command=("x",)), IMAGE)["process"]["capabilities"]) == {
        "bounding",
        "effective",
        "permitted",
    }


def test_a_config_is_placed_without_being_changed() -> None:
    mounts = (Mount(Path("/host/v"), "/v"), Mount(Path("/host/r"), "/r", read_only=True))
    config = oci_spec.build(Process("app", command=("x",), mounts=mounts), IMAGE, cpu_milli=500, memory_bytes=1 << 20)
    assert config["linux"]["resources"] == {"cpu": {"quota": 50000, "period": 100000}, "memory": {"limit": 1 << 20}}
    before = repr(config)
    placed = oci_spec.place(config, name="app", rootfs=Path("/r"), netns=Path("/n"), sandbox_id="s", root=False)
    assert repr(config) == before
    assert placed["root"]["path"] == "/r"
    assert [n for n in placed["linux"]["namespaces"] if n["type"] == "network"] == [{"type": "network", "path": "/n"}]
    assert placed["annotations"] == {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": "app",
        "io.kubernetes.cri.sandbox-id": "s",
    }
    assert [m["options"] for m in placed["mounts"] if m["type"] == "bind"] == [["rbind", "rw"], ["rbind", "ro"]]


def test_an_image_config_may_leave_out_or_null_anything() -> None:
    assert ImageConfig.parse({}) == ImageConfig.parse({"config": {"Cmd": None, "Env": None}}) == ImageConfig()
