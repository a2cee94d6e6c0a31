"""Volumes of a template: every bound of the proto at its edge and one beyond."""

from __future__ import annotations

from typing import Any

from ate.proto import ateapi_pb2 as pb
from tests.system.api_table.makers import IMAGE, LONGEST
from tests.system.api_table.template_bounds import VOLUME, Bound, Build, declare, long_image, mount, mounts

BUNDLE = "egress-mitm.ate.dev"
_SOURCES = f"{VOLUME}.system_info.data_sources"


def _volumes(count: int) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        template.containers.add(name="d", image=IMAGE)
        for number in range(count):
            template.volumes.add(name=f"v{number}", image=pb.ImageVolume(reference=IMAGE))
            mounts = template.containers[number // 32].volume_mounts
            mounts.add(name=f"v{number}", mount_path=f"/v{number}")

    return build


def _volume(**kind: Any) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        template.volumes.add(name="v", **kind)
        template.containers[0].volume_mounts.add(name="v", mount_path="/v")

    return build


def _sources(*sources: pb.SystemInfoDataSource) -> Build:
    return _volume(system_info=pb.SystemInfoVolume(data_sources=sources))


def _item(path: str, field: int = 1) -> pb.ActorMetadataItem:
    return pb.ActorMetadataItem(field=field, path=path)  # type: ignore[arg-type]


def _items(*items: pb.ActorMetadataItem) -> Build:
    return _sources(pb.SystemInfoDataSource(actor_metadata=pb.ActorMetadataSource(items=items)))


def _bundle(path: str, **name: Any) -> pb.SystemInfoDataSource:
    return pb.SystemInfoDataSource(trust_bundle=pb.TrustBundleSource(path=path, **(name or {"name": BUNDLE})))


def _external(capacity: str = "1Gi", name: str = "fast") -> Build:
    return _volume(external_volume_template=pb.ExternalVolumeTemplate(capacity=capacity, storage_class_name=name))


def _durable(count: int) -> Build:
    def build(template: pb.ActorTemplate) -> None:
        for number in range(count):
            template.volumes.add(name=f"v{number}").durable_dir.SetInParent()
            template.containers[0].volume_mounts.add(name=f"v{number}", mount_path=f"/v{number}")

    return build


declare(
    (
        Bound("32 volumes", "volumes", _volumes(32), _volumes(33)),
        Bound(
            "no volume twice",
            "volumes[1]",
            lambda t: (mount(t, "/a"), mount(t, "/b", name="w")),
            lambda t: (mount(t, "/a"), mount(t, "/b")),
        ),
        Bound("a volume's name", f"{VOLUME}.name", mounts("/a"), lambda t: mount(t, "/a", name="")),
        Bound(
            "63 characters of a volume's name",
            f"{VOLUME}.name",
            lambda t: mount(t, "/a", name="v" * 63),
            lambda t: mount(t, "/a", name="v" * 64),
        ),
        Bound("volumes that are mounted", VOLUME, mounts("/a"), mounts()),
        Bound("a kind of volume", VOLUME, _volume(durable_dir=pb.DurableDirVolume()), _volume()),
        Bound(
            "one kind of volume",
            VOLUME,
            _volume(image=pb.ImageVolume(reference=IMAGE)),
            _volume(image=pb.ImageVolume(reference=IMAGE), durable_dir=pb.DurableDirVolume()),
        ),
        Bound("1 durable_dir of gVisor", "volumes", _durable(1), _durable(2)),
        Bound(
            "an external volume's capacity", f"{VOLUME}.external_volume_template.capacity", _external(), _external("")
        ),
        Bound("a capacity above 0", f"{VOLUME}.external_volume_template.capacity", _external("1"), _external("0")),
        Bound(
            "32 characters of a capacity",
            f"{VOLUME}.external_volume_template.capacity",
            _external("0" * 31 + "1"),
            _external("0" * 32 + "1"),
        ),
        Bound(
            "a storage class", f"{VOLUME}.external_volume_template.storage_class_name", _external(), _external(name="")
        ),
        Bound(
            "253 characters of a storage class",
            f"{VOLUME}.external_volume_template.storage_class_name",
            _external(name=LONGEST),
            _external(name=LONGEST + "x"),
        ),
        Bound(
            "an image volume's reference",
            f"{VOLUME}.image.reference",
            _volume(image=pb.ImageVolume(reference=IMAGE)),
            _volume(image=pb.ImageVolume()),
        ),
        Bound(
            "512 characters of a reference",
            f"{VOLUME}.image.reference",
            _volume(image=pb.ImageVolume(reference=long_image(512))),
            _volume(image=pb.ImageVolume(reference=long_image(513))),
        ),
        Bound(
            "8 data sources",
            _SOURCES,
            _sources(*(_bundle(f"b{n}") for n in range(8))),
            _sources(*(_bundle(f"b{n}") for n in range(9))),
        ),
        Bound(
            "one actor_metadata",
            _SOURCES,
            _items(_item("a")),
            _sources(
                *(pb.SystemInfoDataSource(actor_metadata=pb.ActorMetadataSource(items=[_item(path)])) for path in "ab")
            ),
        ),
        Bound("no file twice", f"{_SOURCES}[1]", _items(_item("a"), _item("b", 2)), _items(_item("a"), _item("a", 2))),
        Bound(
            "no file below another",
            _SOURCES,
            _items(_item("a/b"), _item("a/c", 2)),
            _items(_item("a"), _item("a/c", 2)),
        ),
        Bound(
            "no control characters in a file's path",
            f"{_SOURCES}[0].actor_metadata.items[0].path",
            _items(_item("a b")),
            _items(_item("a\0")),
        ),
        Bound("a kind of data source", f"{_SOURCES}[0]", _sources(_bundle("a")), _sources(pb.SystemInfoDataSource())),
        Bound("1 item", f"{_SOURCES}[0].actor_metadata.items", _items(_item("a")), _items()),
        Bound(
            "no field twice",
            f"{_SOURCES}[0].actor_metadata.items[1]",
            _items(_item("a", 1), _item("b", 2), _item("c", 3)),
            _items(_item("a"), _item("b")),
        ),
        Bound(
            "an item's field",
            f"{_SOURCES}[0].actor_metadata.items[0].field",
            _items(_item("a", 3)),
            _items(_item("a", 0)),
        ),
        Bound(
            "a known field",
            f"{_SOURCES}[0].actor_metadata.items[0].field",
            _items(_item("a", 3)),
            _items(_item("a", 4)),
        ),
        Bound(
            "255 characters of a file's path",
            f"{_SOURCES}[0].actor_metadata.items[0].path",
            _items(_item("p" * 255)),
            _items(_item("p" * 256)),
        ),
        Bound(
            "16 segments of a file's path",
            f"{_SOURCES}[0].actor_metadata.items[0].path",
            _items(_item("/".join("p" * 16))),
            _items(_item("/".join("p" * 17))),
        ),
        Bound(
            "a clean file's path",
            f"{_SOURCES}[0].actor_metadata.items[0].path",
            _items(_item("a/b")),
            _items(_item("a/../b")),
        ),
        Bound(
            "a relative file's path",
            f"{_SOURCES}[0].trust_bundle.path",
            _sources(_bundle("a")),
            _sources(_bundle("/a")),
        ),
        Bound(
            "a known trust bundle",
            f"{_SOURCES}[0].trust_bundle.name",
            _sources(_bundle("a", names=[BUNDLE])),
            _sources(_bundle("a", names=["other"])),
        ),
        Bound(
            "one name of a trust bundle",
            f"{_SOURCES}[0].trust_bundle.name",
            _sources(_bundle("a")),
            _sources(_bundle("a", names=[BUNDLE, BUNDLE])),
        ),
        Bound(
            "either name or names of a trust bundle",
            f"{_SOURCES}[0].trust_bundle.name",
            _sources(_bundle("a")),
            _sources(_bundle("a", name=BUNDLE, names=[BUNDLE])),
        ),
    )
)
