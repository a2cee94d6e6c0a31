"""Rules for the smaller resources and the parts several of them share. Pure: messages in, problems out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

from ate import quantity
from ate.api.validation.problems import Problems
from ate.names import is_long
from ate.proto import ateapi_pb2 as pb

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_ARCHITECTURES = frozenset({"amd64", "arm64"})
_DIGEST = re.compile(r"[^@\s]+@sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[a-f0-9]{64}")
_CLOUD_HYPERVISOR = frozenset(
    {"cloud-hypervisor", "virtiofsd", "kata-kernel", "kata-image", "kata-config", "kata-shim"}
)


def metadata(problems: Problems, path: str, value: pb.ResourceMetadata, *, scoped: bool) -> None:
    """Name and atespace of a resource: both short; global resources have no atespace."""
    if scoped:
        problems.short(f"{path}.atespace", value.atespace)
    else:
        problems.check(f"{path}.atespace", value.atespace == "", "must be empty: the resource is global")
    problems.short(f"{path}.name", value.name)


def guards(problems: Problems, path: str, value: pb.ResourceMetadata) -> None:
    """An update says which version of which object it replaces."""
    problems.uuid(f"{path}.uid", value.uid)
    problems.check(f"{path}.version", value.version >= 1, "is required: send it back as read")


def ref(
    problems: Problems, path: str, present: bool, value: pb.ObjectRef, *, scoped: bool, required: bool = True
) -> None:
    if not present:
        problems.check(path, not required, "is required")
        return
    if scoped:
        problems.short(f"{path}.atespace", value.atespace)
    else:
        problems.check(f"{path}.atespace", value.atespace == "", "must be empty: the resource is global")
    problems.short(f"{path}.name", value.name)


def delete_options(problems: Problems, path: str, value: pb.DeleteOptions) -> None:
    problems.uuid(f"{path}.uid", value.uid, required=False)
    problems.check(f"{path}.version", value.version >= 0, "may not be negative")


def label_key(problems: Problems, path: str, key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    ok = _LABEL_NAME.fullmatch(name) is not None and (not slash or is_long(prefix))
    problems.check(path, ok, f"{key!r} is not a label key")


def labels(problems: Problems, path: str, value: Mapping[str, str], limit: int) -> None:
    """Kubernetes label syntax."""
    problems.at_most(path, value, limit)
    for key, text in value.items():
        label_key(problems, f"{path}[{key}]", key)
        ok = text == "" or _LABEL_NAME.fullmatch(text) is not None
        problems.check(f"{path}[{key}]", ok, f"{text!r} is not a label value")


def selector(problems: Problems, path: str, value: pb.Selector) -> None:
    problems.check(f"{path}.match_labels", len(value.match_labels) >= 1, "needs at least one entry")
    labels(problems, f"{path}.match_labels", value.match_labels, 10)


def resources(problems: Problems, path: str, value: pb.Resources) -> None:
    """Limits for cpu (below 1000 cores) and memory, each above zero."""
    problems.at_most(f"{path}.limits", value.limits, 2)
    problems.unique(f"{path}.limits", (limit.name for limit in value.limits), "resource")
    for index, limit in enumerate(value.limits):
        where = f"{path}.limits[{index}]"
        problems.check(f"{where}.name", limit.name in ("cpu", "memory"), f"{limit.name!r} is not cpu or memory")
        try:
            amount = quantity.parse(limit.quantity)
        except ValueError as error:
            problems.add(f"{where}.quantity", str(error))
            continue
        problems.check(f"{where}.quantity", amount > 0, "must be above 0")
        if limit.name == "cpu":
            problems.check(f"{where}.quantity", amount < 1000, "must be below 1000 cores")


def image(problems: Problems, path: str, value: str) -> None:
    """An image reference pinned by digest."""
    problems.length(path, value, 512, required=True)
    if value:
        problems.check(path, _DIGEST.fullmatch(value) is not None, f"{value!r} is not pinned with @sha256:<64 digits>")


def worker(problems: Problems, path: str, value: pb.Worker) -> None:
    """A worker as it is created."""
    metadata(problems, f"{path}.metadata", value.metadata, scoped=False)
    problems.long(f"{path}.node_name", value.node_name)
    problems.at_most(f"{path}.ips", value.ips, 2)
    problems.length(f"{path}.sandbox_class", value.sandbox_class, 63, required=True)
    labels(problems, f"{path}.labels", value.labels, 64)
    problems.check(f"{path}.epoch", value.epoch >= 0, "may not be negative")


def capacity(problems: Problems, path: str, value: pb.WorkerResources) -> None:
    problems.check(f"{path}.actors", value.actors >= 1, "must be at least 1")
    resources(problems, f"{path}.resources", value.resources)


def tag(problems: Problems, path: str, value: pb.Tag) -> None:
    metadata(problems, f"{path}.metadata", value.metadata, scoped=True)
    known = value.scope in (pb.TAG_SCOPE_ATESPACE, pb.TAG_SCOPE_PUBLISHED)
    problems.check(f"{path}.scope", known, "must be TAG_SCOPE_ATESPACE or TAG_SCOPE_PUBLISHED")
    ref(problems, f"{path}.source_actor", value.HasField("source_actor"), value.source_actor, scoped=True)


def actor(problems: Problems, path: str, value: pb.Actor) -> None:
    metadata(problems, f"{path}.metadata", value.metadata, scoped=True)
    ref(problems, f"{path}.actor_template", value.HasField("actor_template"), value.actor_template, scoped=True)
    if value.HasField("worker_selector"):
        selector(problems, f"{path}.worker_selector", value.worker_selector)
    if value.HasField("wake_time"):
        problems.timestamp(f"{path}.wake_time", value.wake_time)
    present = value.HasField("source_tag")
    ref(problems, f"{path}.source_tag", present, value.source_tag, scoped=True, required=False)


def worker_pool(problems: Problems, path: str, value: pb.WorkerPool) -> None:
    """Field rules of the seed's WorkerPoolSpec."""
    metadata(problems, f"{path}.metadata", value.metadata, scoped=False)
    labels(problems, f"{path}.labels", value.labels, 64)
    problems.check(f"{path}.spec", value.HasField("spec"), "is required")
    spec, template = value.spec, value.spec.template
    problems.check(f"{path}.spec.replicas", 0 <= spec.replicas <= 10000, "must be 0..10000")
    problems.known(f"{path}.spec.sandbox_class", spec.sandbox_class, pb.SandboxClass.values())
    problems.short(f"{path}.spec.deployment_namespace", spec.deployment_namespace, required=False)
    where = f"{path}.spec.template"
    for name, mapping in (("labels", template.labels), ("annotations", template.annotations)):
        problems.at_most(f"{where}.{name}", mapping, 64)
        for key in mapping:
            label_key(problems, f"{where}.{name}[{key}]", key)
            domain = key.rpartition("/")[0]
            reserved = domain == "ate.dev" or domain.endswith(".ate.dev")
            problems.check(f"{where}.{name}[{key}]", not reserved, "keys in ate.dev and its subdomains are reserved")
    problems.at_most(f"{where}.tolerations", template.tolerations, 16)
    for index, entry in enumerate(template.tolerations):
        _toleration(problems, f"{where}.tolerations[{index}]", entry)
    for kind, amounts in (("limits", template.resources.limits), ("requests", template.resources.requests)):
        for key, text in amounts.items():
            try:
                amount = quantity.parse(text)
            except ValueError as error:
                problems.add(f"{where}.resources.{kind}[{key}]", str(error))
                continue
            problems.check(f"{where}.resources.{kind}[{key}]", amount >= 0, "may not be negative")
            limit = template.resources.limits.get(key)
            if kind == "requests" and limit is not None and amount > _or_infinite(limit):
                problems.add(f"{where}.resources.requests[{key}]", f"{text} is above the limit {limit}")


def _toleration(problems: Problems, path: str, value: pb.Toleration) -> None:
    operator, effect = value.operator or "Equal", value.effect
    problems.check(f"{path}.operator", operator in ("Exists", "Equal"), f"{operator!r} is not Exists or Equal")
    ok = effect in ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
    problems.check(f"{path}.effect", ok, f"{effect!r} is not NoSchedule, PreferNoSchedule or NoExecute")
    problems.check(f"{path}.key", value.key != "" or operator == "Exists", "is required unless operator is Exists")
    problems.check(f"{path}.value", value.value == "" or operator == "Equal", "must be empty with operator Exists")
    timed = value.HasField("toleration_seconds")
    problems.check(f"{path}.toleration_seconds", not timed or effect == "NoExecute", "goes with effect NoExecute only")


def _or_infinite(text: str) -> Decimal:
    try:
        return quantity.parse(text)
    except ValueError:
        return Decimal("Infinity")


def sandbox_config(problems: Problems, path: str, value: pb.SandboxRuntimeConfig) -> None:
    """Field rules of SandboxConfig and its admission policy (reference, section 7)."""
    metadata(problems, f"{path}.metadata", value.metadata, scoped=False)
    spec = value.spec
    problems.check(f"{path}.spec", value.HasField("spec"), "is required")
    problems.known(f"{path}.spec.sandbox_class", spec.sandbox_class, pb.SandboxClass.values())
    image(problems, f"{path}.spec.pause_image", spec.pause_image)
    for arch, assets in spec.assets.items():
        where = f"{path}.spec.assets[{arch}]"
        problems.check(where, arch in _ARCHITECTURES, f"{arch!r} is not one of {sorted(_ARCHITECTURES)}")
        _assets(problems, where, set(assets.files), microvm=spec.sandbox_class == pb.SANDBOX_CLASS_MICROVM)
        for name, file in assets.files.items():
            problems.length(f"{where}.{name}.url", file.url, 2048, required=True)
            ok = _SHA256.fullmatch(file.sha256) is not None
            problems.check(f"{where}.{name}.sha256", ok, "must be 64 lower-case hexadecimal digits")


def _assets(problems: Problems, path: str, names: set[str], *, microvm: bool) -> None:
    """The files a runtime cannot do without."""
    if not microvm:
        problems.check(path, not names or bool({"gvisor", "runsc"} & names), "needs an asset named gvisor or runsc")
    elif _CLOUD_HYPERVISOR & names:
        missing = sorted(_CLOUD_HYPERVISOR - names)
        problems.check(path, not missing, f"Cloud Hypervisor also needs {', '.join(missing)}")
    else:
        problems.check(path, "kernel" in names, "QEMU needs an asset named kernel")
