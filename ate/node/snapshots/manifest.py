"""The manifest of a snapshot: whose it is, with which runtime it was taken, and the digests of its files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ate.errors import DataLoss, FailedPrecondition

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_RESERVED: Final = ("manifest.json", "quarantine.json")
FULL: Final = "full"
DATA: Final = "data"


@dataclass(frozen=True, slots=True)
class AssetSource:
    """A runtime binary: where it comes from, and the hex sha256 it must have."""

    url: str
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One file: its length with holes and the digest of its content as `sparse` defines it; and the object it is
    stored as, with the plain size and sha256 of that (empty while it is only on its node)."""

    name: str
    raw_size: int
    raw_sha256: str
    stored_name: str = ""
    stored_size: int = 0
    stored_sha256: str = ""


@dataclass(frozen=True)
class Manifest:
    """`file_names` are the files of this snapshot, `data_file_names` those that make a data snapshot by themselves.

    `objects` is empty until the snapshot is saved.
    """

    sandbox_class: str
    assets: Mapping[str, AssetSource]
    pause_image: str
    atespace: str
    actor_name: str
    actor_uid: str
    template_atespace: str
    template_name: str
    file_names: tuple[str, ...]
    data_file_names: tuple[str, ...]
    scope: str
    objects: tuple[StoredObject, ...] = ()

    def wanted(self, scope: str, where: str) -> tuple[StoredObject, ...]:
        """The files of `scope`; FailedPrecondition when the snapshot (named `where`) cannot give that."""
        if scope == FULL and self.scope != FULL:
            raise FailedPrecondition(f"snapshot {where} holds durable data only: it cannot be restored in full")
        names = self.file_names if scope == FULL or self.scope == DATA else self.data_file_names
        if scope == DATA and self.scope == FULL and not names:
            raise FailedPrecondition(f"snapshot {where} has no separate durable data: restore it in full")
        by_name = {stored.name: stored for stored in self.objects}
        return tuple(by_name[name] for name in names)

    def all_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.file_names + self.data_file_names))

    def to_json(self) -> bytes:
        document = {
            "sandboxClass": self.sandbox_class,
            "assets": {name: {"url": a.url, "sha256": a.sha256} for name, a in sorted(self.assets.items())},
            "pauseImage": self.pause_image,
            "atespace": self.atespace,
            "actorName": self.actor_name,
            "actorUid": self.actor_uid,
            "actorTemplateNamespace": self.template_atespace,
            "actorTemplateName": self.template_name,
            "snapshotFiles": list(self.file_names),
            "dataSnapshotFiles": list(self.data_file_names),
            "scope": self.scope,
            "objects": [
                {
                    "name": stored.name,
                    "size": stored.raw_size,
                    "sha256": stored.raw_sha256,
                    "storedName": stored.stored_name,
                    "storedSize": stored.stored_size,
                    "storedSha256": stored.stored_sha256,
                }
                for stored in self.objects
            ],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """DataLoss, naming `where` it was read, for anything that is no whole manifest."""
        try:
            document = json.loads(data)
            manifest = cls(
                sandbox_class=_text(document["sandboxClass"]),
                assets={
                    name: AssetSource(_text(asset["url"]), _digest(asset["sha256"]))
                    for name, asset in document["assets"].items()
                },
                pause_image=_text(document["pauseImage"]),
                atespace=_text(document["atespace"]),
                actor_name=_text(document["actorName"]),
                actor_uid=_text(document["actorUid"]),
                template_atespace=_text(document["actorTemplateNamespace"]),
                template_name=_text(document["actorTemplateName"]),
                file_names=_names(document["snapshotFiles"]),
                data_file_names=_names(document["dataSnapshotFiles"]),
                scope=_text(document["scope"]),
                objects=tuple(_object(entry) for entry in document["objects"]),
            )
            manifest._check()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise DataLoss(f"{where} is no usable snapshot manifest: {type(error).__name__}: {error}") from error
        return manifest

    def _check(self) -> None:
        if self.scope not in (FULL, DATA):
            raise ValueError(f"scope {self.scope!r}")
        known = {stored.name for stored in self.objects}
        if len(known) != len(self.objects):
            raise ValueError("an object is named twice")
        if missing := set(self.all_names()) - known:
            raise ValueError(f"no digest for {sorted(missing)}")


def check_name(name: str) -> str:
    """A file name that stays inside its folder, or ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
        raise ValueError(f"{name!r} is no snapshot file name")
    return name


def _names(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError("file names are no list")
    return tuple(check_name(value) for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no string")
    return value


def _digest(value: Any) -> str:
    if not _SHA256.fullmatch(_text(value)):
        raise ValueError(f"{value!r} is no sha256")
    return str(value)


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no size")
    return value


def _object(entry: Any) -> StoredObject:
    stored = StoredObject(
        name=check_name(entry["name"]),
        raw_size=_size(entry["size"]),
        raw_sha256=_digest(entry["sha256"]),
    )
    if not entry["storedName"]:  # of a paused actor: nothing is compressed on its node
        return stored
    return StoredObject(
        stored.name,
        stored.raw_size,
        stored.raw_sha256,
        check_name(entry["storedName"]),
        _size(entry["storedSize"]),
        _digest(entry["storedSha256"]),
    )
