"""YAML that people write, turned into the API's messages: Kubernetes-shaped pools and configs, protojson for the rest.

The other spellings of the sources (contract.md) are taken and stored under the seed's names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import yaml
from google.protobuf import json_format
from google.protobuf.message import Message

from ate.cli import shape
from ate.errors import InvalidArgument
from ate.proto import ateapi_pb2 as pb

M = TypeVar("M", bound=Message)

API_VERSION = "ate.dev/v1alpha1"
_OUTERMOST = ("apiVersion", "kind", "metadata", "spec", "status")
_CLASSES = {"gvisor": "SANDBOX_CLASS_GVISOR", "microvm": "SANDBOX_CLASS_MICROVM", None: "SANDBOX_CLASS_GVISOR"}
_PLAIN: dict[str, type[Message]] = {
    "AccessPolicy": pb.AccessPolicy,
    "ActorTemplate": pb.ActorTemplate,
    "Atespace": pb.Atespace,
    "Actor": pb.Actor,
    "Tag": pb.Tag,
}


def read(text: str, source: str) -> Iterator[Message]:
    """Every document of a file as the message of its kind. InvalidArgument names file and document."""
    try:
        documents = list(yaml.safe_load_all(text))
    except (yaml.YAMLError, ValueError) as error:  # a date that is none is a plain ValueError
        raise InvalidArgument(f"{source}: not YAML: {error}")
    except RecursionError:
        raise InvalidArgument(f"{source}: is nested too deeply")
    for number, document in enumerate(documents, 1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise InvalidArgument(f"{source}, document {number}: must be a mapping")
        try:
            if document.get("kind") == "List":  # what `get -o yaml` prints of several
                for index, item in enumerate(_list(document, "items")):
                    if not isinstance(item, dict):
                        raise InvalidArgument(f"items[{index}]: must be a mapping")
                    try:
                        yield to_message(item)
                    except InvalidArgument as error:
                        raise InvalidArgument(f"items[{index}].{error.message}")
                continue
            yield to_message(document)
        except InvalidArgument as error:
            raise InvalidArgument(f"{source}, document {number}: {error}")
        except RecursionError:
            raise InvalidArgument(f"{source}, document {number}: is nested too deeply")


def _mapping(holder: dict[str, Any], name: str, path: str = "") -> dict[str, Any]:
    """The mapping at `name`, empty when absent. InvalidArgument for anything else."""
    value = holder.get(name)
    if value is not None and not isinstance(value, dict):
        raise InvalidArgument(f"{path}{name}: must be a mapping")
    return dict(value or {})


def _list(holder: dict[str, Any], name: str) -> list[Any]:
    value = holder.get(name)
    if value is not None and not isinstance(value, list):
        raise InvalidArgument(f"{name}: must be a list")
    return list(value or [])


def to_message(document: dict[str, Any]) -> Message:
    """One document. Without `kind` it is an ActorTemplate, the form `create actor-template -f` takes."""
    version = document.get("apiVersion", API_VERSION)
    kind = document.get("kind", "ActorTemplate" if "containers" in document else "")
    if version != API_VERSION:
        raise InvalidArgument(f"apiVersion: {version!r} is not {API_VERSION}")
    if not isinstance(kind, str):
        raise InvalidArgument("kind: must be a word")
    if kind == "WorkerPool":
        return _worker_pool(document)
    if kind == "SandboxConfig":
        return _sandbox_config(document)
    if kind not in _PLAIN:
        known = ", ".join(sorted([*_PLAIN, "WorkerPool", "SandboxConfig"]))
        raise InvalidArgument(f"kind: {kind!r} is not one of {known}")
    body = {name: value for name, value in document.items() if name not in ("apiVersion", "kind")}
    written: _Written = []
    if isinstance(body.get("spec"), dict):
        spec = body.pop("spec")
        written += [(str(name), f"spec.{name}") for name in spec]
        body |= spec
    if kind == "AccessPolicy" and isinstance(body.get("metadata"), dict | None):
        body["metadata"] = {"name": "default", **(body.get("metadata") or {})}  # which is what all of them are called
    if kind == "ActorTemplate":
        written = [*_respell_template(body), *written]
    return _parse(body, _PLAIN[kind](), written)


_Written = list[tuple[str, str]]
"""Paths of fields where people wrote them otherwise: ours, then theirs, each applied to what the ones before gave."""


def _parse(body: dict[str, Any], message: M, written: _Written) -> M:
    """`body` as this message. InvalidArgument names the field as it was written."""
    try:
        return json_format.ParseDict(shape.fitting(body, message), message)
    except InvalidArgument as error:
        path, colon, what = error.message.partition(": ")
        for ours, theirs in written:
            if path == ours or path.startswith((f"{ours}.", f"{ours}[")):
                path = theirs + path[len(ours) :]
        raise InvalidArgument(f"{path}{colon}{what}")
    except json_format.ParseError as error:  # what we did not think of
        raise InvalidArgument(str(error))


def _respell_template(body: dict[str, Any]) -> _Written:
    written = []
    if "snapshotConfig" in body:
        body["snapshotsConfig"] = body.pop("snapshotConfig")
        written.append(("snapshotsConfig", "snapshotConfig"))
    containers = body["containers"] if isinstance(body.get("containers"), list) else []
    for index, container in enumerate(containers):
        if isinstance(container, dict) and "wakeupProbe" in container:
            container["readyz"] = container.pop("wakeupProbe")
            written.append((f"containers[{index}].readyz", f"containers[{index}].wakeupProbe"))
    for holder in [body, *containers]:
        resources = holder.get("resources") if isinstance(holder, dict) else None
        if isinstance(resources, dict) and isinstance(resources.get("limits"), dict):
            limits = resources["limits"]
            resources["limits"] = [{"name": str(name), "quantity": str(value)} for name, value in limits.items()]
    return written


def _metadata(document: dict[str, Any]) -> dict[str, Any]:
    """Of a document in the shape of Kubernetes, whose outermost fields are looked at here as well."""
    for name in document:
        if name not in _OUTERMOST:
            raise InvalidArgument(f"{name}: there is no such field: {document['kind']} takes {', '.join(_OUTERMOST)}")
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not metadata.get("name"):
        raise InvalidArgument("metadata.name: is required")
    return metadata


def _class(spec: dict[str, Any]) -> str:
    name = spec.get("sandboxClass")
    if not isinstance(name, str | None) or name not in _CLASSES:
        raise InvalidArgument(f"spec.sandboxClass: {name!r} is not gvisor or microvm")
    return _CLASSES[name]


def _worker_pool(document: dict[str, Any]) -> pb.WorkerPool:
    metadata, spec = _metadata(document), _mapping(document, "spec")
    if "replicas" not in spec:
        raise InvalidArgument("spec.replicas: is required")
    spec["sandboxClass"] = _class(spec)
    spelled_otherwise = "ateomImage" in spec
    if spelled_otherwise:
        spec["workerImage"] = spec.pop("ateomImage")
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("resources"), dict):
        for name in template["resources"]:
            amounts = _mapping(template["resources"], name, "spec.template.resources.")
            template["resources"][name] = {what: str(value) for what, value in amounts.items()}
    spec["deploymentNamespace"] = metadata.get("namespace", "")
    body = {"metadata": {"name": metadata["name"]}, "labels": metadata.get("labels") or {}, "spec": spec}
    written = [("labels", "metadata.labels"), ("spec.deploymentNamespace", "metadata.namespace")]
    if spelled_otherwise:
        written.append(("spec.workerImage", "spec.ateomImage"))
    return _parse(body, pb.WorkerPool(), written)


def _sandbox_config(document: dict[str, Any]) -> pb.SandboxRuntimeConfig:
    metadata, spec = _metadata(document), _mapping(document, "spec")
    spec["sandboxClass"] = _class(spec)
    spec["assets"] = {arch: {"files": files} for arch, files in _mapping(spec, "assets", "spec.").items()}
    written = [(f"spec.assets.{arch}.files", f"spec.assets.{arch}") for arch in spec["assets"]]
    return _parse({"metadata": {"name": metadata["name"]}, "spec": spec}, pb.SandboxRuntimeConfig(), written)


def to_document(message: Message) -> dict[str, Any]:
    """The message as people write it: what `get -o yaml` prints and `apply -f` takes."""
    body: dict[str, Any] = json_format.MessageToDict(message)
    if isinstance(message, pb.WorkerPool):
        spec = body.get("spec", {})
        spec["sandboxClass"] = "microvm" if message.spec.sandbox_class == pb.SANDBOX_CLASS_MICROVM else "gvisor"
        metadata = {**body["metadata"], "labels": body.pop("labels", {})}
        if spec.pop("deploymentNamespace", ""):
            metadata["namespace"] = message.spec.deployment_namespace
        return {"apiVersion": API_VERSION, "kind": "WorkerPool", **body, "metadata": metadata, "spec": spec}
    if isinstance(message, pb.SandboxRuntimeConfig):
        spec = body.get("spec", {})
        spec["sandboxClass"] = "microvm" if message.spec.sandbox_class == pb.SANDBOX_CLASS_MICROVM else "gvisor"
        spec["assets"] = {arch: assets.get("files", {}) for arch, assets in spec.get("assets", {}).items()}
        return {"apiVersion": API_VERSION, "kind": "SandboxConfig", **body, "spec": spec}
    return {"apiVersion": API_VERSION, "kind": type(message).__name__, **body}
