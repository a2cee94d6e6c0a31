"""Imports images from disk: OCI layout folders and archives of them, and what `docker save` writes.

Runs beside a node agent, in another process: everything appears by rename. Only this machine's platform is unpacked.
"""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ate.errors import AteError, DataLoss, InvalidArgument, NotFound
from ate.log import Logger
from ate.node.images import document as documents
from ate.node.images.archive import extract
from ate.node.images.disk import ImageDirectory
from ate.node.images.layers import install_layer, told
from ate.node.images.reference import DIGEST, parse
from ate.objects.store import StopSign, in_thread

log = Logger("ate.node")

_NAMES: Final = ("io.containerd.image.name", "org.opencontainers.image.ref.name")


async def import_path(directory: Path, path: Path, name: str = "") -> list[str]:
    """Imports the images at `path` into the image store at `directory`; their references `name@sha256:…`.

    `name` is used instead of the names in the archive. InvalidArgument when `path` holds no images.
    """

    def work(sign: StopSign) -> list[str]:
        disk = ImageDirectory(directory)
        try:
            if path.is_dir():
                return _Import(disk, path, name, sign).run()
            if not path.exists():
                raise NotFound(f"{path} does not exist")
            with disk.stage() as staging:
                _extract(path, staging, sign)
                return _Import(disk, staging, name, sign).run()
        except OSError as error:
            raise told(error, disk) from error

    return await in_thread(work)


def _extract(path: Path, staging: Path, sign: StopSign) -> None:
    try:
        archive = tarfile.open(path, "r:*")  # noqa: SIM115 - closed below
    except tarfile.ReadError:
        raise InvalidArgument(
            f"{path} is no image: expected an OCI layout (a folder or a tar archive) or the output of `docker save`"
        ) from None
    try:
        with archive as tar:
            extract(tar, staging, str(path), sign.check)
    except (tarfile.TarError, EOFError) as error:
        raise InvalidArgument(f"{path} is no usable archive of images: {error}") from error


class _Import:
    def __init__(self, disk: ImageDirectory, source: Path, name: str, sign: StopSign) -> None:
        self._disk, self._source, self._name, self._sign = disk, source, name, sign

    def run(self) -> list[str]:
        if (self._source / "index.json").is_file():
            return self._layout()
        if (self._source / "manifest.json").is_file():
            return self._docker_save()
        raise InvalidArgument(f"{self._source} holds no images: neither an OCI layout nor the output of docker save")

    # -- OCI layout -------------------------------------------------------------------------------------------------

    def _layout(self) -> list[str]:
        index = documents.load((self._source / "index.json").read_bytes(), f"{self._source}/index.json")
        entries = index.get("manifests")
        if not isinstance(entries, list) or not entries:
            raise InvalidArgument(f"{self._source}/index.json names no images")
        references = []
        for entry in entries:
            found = documents.descriptor(entry, f"{self._source}/index.json")
            name = self._name or next((found.annotations[key] for key in _NAMES if key in found.annotations), "")
            reference = _reference(name, found.digest)
            self._image(reference, found.digest)
            self._disk.mark_imported(found.digest)
            references.append(reference)
        return references

    def _image(self, what: str, digest: str) -> None:
        data = self._blob(digest)
        document = documents.load(data, what)
        if documents.is_index(document):
            self._image(what, documents.choose(document, what).digest)
        else:
            manifest = documents.manifest(document, what)
            config_data = self._blob(manifest.config.digest)
            config = documents.load(config_data, f"the config of {what}")
            diff_ids = documents.diff_ids(config, manifest, what)
            for layer, diff_id in zip(manifest.layers, diff_ids, strict=True):
                self._layer(what, self._blob_path(layer.digest), layer.digest, diff_id)
            self._disk.write_blob(config_data)
        # After what it names, so that what is found here is whole.
        self._disk.write_blob(data)

    def _blob_path(self, digest: str) -> Path:
        path = self._source / "blobs" / "sha256" / digest.removeprefix("sha256:")
        if path.is_symlink() or not path.is_file():
            raise InvalidArgument(f"{self._source} is incomplete: it has no blob {digest}")
        return path

    def _blob(self, digest: str) -> bytes:
        path = self._blob_path(digest)
        if path.stat().st_size > documents.MAX_DOCUMENT:
            raise InvalidArgument(f"blob {digest} of {self._source} is too long for a manifest or config")
        data = path.read_bytes()
        if "sha256:" + hashlib.sha256(data).hexdigest() != digest:
            raise DataLoss(f"blob {digest} of {self._source} is damaged: its content has another digest")
        return data

    def _layer(self, what: str, blob: Path, digest: str, diff_id: str) -> None:
        if self._disk.layer(diff_id).exists():
            return
        self._sign.check()
        with self._disk.stage() as staging:
            install_layer(self._disk, blob, staging, f"{digest} of image {what}", diff_id, self._sign.check)
        log.debug("layer unpacked", layer=diff_id, image=what)

    # -- docker save ------------------------------------------------------------------------------------------------

    def _docker_save(self) -> list[str]:
        """Old archives have no manifest of the image: an OCI one is made from the config and the layers."""
        path = self._source / "manifest.json"
        try:
            entries = json.loads(path.read_bytes())
            return [reference for entry in entries for reference in self._saved(entry)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidArgument(f"{path} is not what docker save writes: {error}") from error

    def _saved(self, entry: Mapping[str, Any]) -> list[str]:
        config_data = self._inside(entry["Config"]).read_bytes()
        config = documents.load(config_data, f"the config {entry['Config']}")
        layers = []
        for relative in entry["Layers"]:
            path = self._inside(relative)
            with path.open("rb") as file:
                digest = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
            layers.append((path, documents.Descriptor(digest, path.stat().st_size, {})))
        config_digest = "sha256:" + hashlib.sha256(config_data).hexdigest()
        described = documents.Descriptor(config_digest, len(config_data), {})
        parsed = documents.ImageManifest(described, tuple(layer for _, layer in layers))
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": documents.MANIFEST_TYPES[0],
                "config": {
                    "mediaType": "application/vnd.oci.image.config.v1+json",
                    "digest": described.digest,
                    "size": described.size,
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.oci.image.layer.v1.tar",
                        "digest": layer.digest,
                        "size": layer.size,
                    }
                    for _, layer in layers
                ],
            },
            sort_keys=True,
        ).encode()
        digest = "sha256:" + hashlib.sha256(manifest).hexdigest()
        names = [self._name] if self._name else list(entry.get("RepoTags") or [""])
        references = [_reference(name, digest) for name in names]
        diff_ids = documents.diff_ids(config, parsed, references[0])
        for (path, layer), diff_id in zip(layers, diff_ids, strict=True):
            self._layer(references[0], path, layer.digest, diff_id)
        self._disk.write_blob(config_data)
        self._disk.write_blob(manifest)
        self._disk.mark_imported(digest)
        return references

    def _inside(self, relative: str) -> Path:
        path = (self._source / relative).resolve()
        if not path.is_relative_to(self._source.resolve()) or not path.is_file():
            raise InvalidArgument(f"{self._source}/manifest.json names {relative!r}, which is not in the archive")
        return path


def _reference(name: str, digest: str) -> str:
    """`name` without its tag, pinned. A layout that names no image gets a name of its own."""
    assert DIGEST.fullmatch(digest)
    host, slash, rest = name.rpartition("/")
    name = f"{host}{slash}{re.sub(r'[:@].*', '', rest)}"
    if name and "/" not in name and "." not in name and ":" not in name:
        name = f"ate.local/{name}"
    reference = f"{name or 'ate.local/imported'}@{digest}"
    try:
        parse(reference)
    except AteError as error:
        raise InvalidArgument(f"image name {name!r} cannot be used, give another: {error.message}") from error
    return reference
