"""Rules for ActorTemplates, and the defaults applied before they are checked. Pure."""

from __future__ import annotations

import posixpath
import re

from ate import quantity
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.proto import ateapi_pb2 as pb

_ENV_NAME = re.compile(r"[!-<>-~]{1,256}")
_PROBE_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_CAPABILITY = re.compile(r"[A-Z][A-Z0-9_]*")
_BUNDLES = frozenset({"egress-mitm.ate.dev"})
_SCHEMES = ("file://", "s3://", "gs://")
FULL, DATA = pb.SNAPSHOT_CONTENT_SCOPE_FULL, pb.SNAPSHOT_CONTENT_SCOPE_DATA


def apply_defaults(template: pb.ActorTemplate) -> None:
    """Fills what the caller left out with what the API promises for it."""
    config = template.snapshots_config
    if template.HasField("snapshots_config"):
        config.on_pause = config.on_pause or FULL
        config.on_commit = config.on_commit or (DATA if config.on_pause == DATA else FULL)
        if not config.on_resume.from_data:
            config.on_resume.from_data = pb.RESUME_SOURCE_COLD_BOOT
    for container in template.containers:
        if container.readyz.HasField("http_get") and not container.readyz.http_get.path:
            container.readyz.http_get.path = "/readyz"
    for volume in template.volumes:
        for source in volume.system_info.data_sources if volume.HasField("system_info") else ():
            if source.HasField("trust_bundle") and len(source.trust_bundle.names) == 1 and not source.trust_bundle.name:
                source.trust_bundle.name = source.trust_bundle.names[0]
                del source.trust_bundle.names[:]


def check(problems: Problems, path: str, template: pb.ActorTemplate) -> None:
    """Every rule of the message's comments in ateapi.proto."""
    rules.metadata(problems, f"{path}.metadata", template.metadata, scoped=True)
    if template.HasField("worker_selector"):
        rules.selector(problems, f"{path}.worker_selector", template.worker_selector)
    known = template.sandbox_config.sandbox_class in (pb.SANDBOX_CLASS_GVISOR, pb.SANDBOX_CLASS_MICROVM)
    problems.check(f"{path}.sandbox_config.sandbox_class", known, "is required: SANDBOX_CLASS_GVISOR or _MICROVM")
    problems.long(f"{path}.sandbox_config.config_name", template.sandbox_config.config_name)
    if template.HasField("resources"):
        rules.resources(problems, f"{path}.resources", template.resources)
    _snapshots(problems, f"{path}.snapshots_config", template)
    _containers(problems, path, template)
    _volumes(problems, path, template)
    _lifecycle(problems, f"{path}.lifecycle", template.lifecycle)


def _snapshots(problems: Problems, path: str, template: pb.ActorTemplate) -> None:
    if not problems.check(path, template.HasField("snapshots_config"), "is required"):
        return
    config = template.snapshots_config
    problems.length(f"{path}.storage_location", config.storage_location, 1024, required=True)
    if config.storage_location:
        location = config.storage_location
        ok = location.startswith(_SCHEMES) and len(location.partition("://")[2].strip("/")) > 0
        problems.check(f"{path}.storage_location", ok, f"{location!r} is not a URI of {', '.join(_SCHEMES)}")
        problems.check(f"{path}.storage_location", ".." not in location.split("/"), "may not contain '..'")
    for name in ("on_pause", "on_commit"):
        problems.check(f"{path}.{name}", getattr(config, name) in (FULL, DATA), "must be FULL or DATA")
    problems.known(f"{path}.on_resume.from_data", config.on_resume.from_data, pb.ResumeSource.values())
    wider = config.on_pause == DATA and config.on_commit == FULL
    problems.check(f"{path}.on_commit", not wider, "may not be wider than on_pause")


def _containers(problems: Problems, path: str, template: pb.ActorTemplate) -> None:
    count = len(template.containers)
    problems.check(f"{path}.containers", 1 <= count <= 10, f"has {count} entries, 1..10 are allowed")
    problems.unique(f"{path}.containers", (c.name for c in template.containers), "container")
    volumes = {volume.name for volume in template.volumes}
    gvisor = template.sandbox_config.sandbox_class == pb.SANDBOX_CLASS_GVISOR
    for index, container in enumerate(template.containers):
        where = f"{path}.containers[{index}]"
        problems.short(f"{where}.name", container.name)
        problems.check(f"{where}.name", container.name != "pause", "'pause' is reserved for the sandbox's root")
        rules.image(problems, f"{where}.image", container.image)
        for name in ("command", "args"):
            words = getattr(container, name)
            problems.at_most(f"{where}.{name}", words, 64)
            for at, word in enumerate(words):
                problems.length(f"{where}.{name}[{at}]", word, 4096)
        _env(problems, f"{where}.env", container)
        _mounts(problems, f"{where}.volume_mounts", container, volumes)
        _capabilities(problems, f"{where}.security_context.capabilities", container.security_context.capabilities)
        if container.HasField("readyz"):
            _readyz(problems, f"{where}.readyz", container.readyz)
        if container.HasField("resources"):
            problems.check(f"{where}.resources", not gvisor, "gVisor has no per-container limits: use the template's")
            rules.resources(problems, f"{where}.resources", container.resources)


def _env(problems: Problems, path: str, container: pb.Container) -> None:
    problems.at_most(path, container.env, 32)
    problems.unique(path, (entry.name for entry in container.env), "variable")
    for at, entry in enumerate(container.env):
        ok = _ENV_NAME.fullmatch(entry.name) is not None
        problems.check(f"{path}[{at}].name", ok, "must be 1..256 printable ASCII characters without '='")
        problems.length(f"{path}[{at}].value", entry.value, 32768)


def _mounts(problems: Problems, path: str, container: pb.Container, volumes: set[str]) -> None:
    mounts = container.volume_mounts
    problems.at_most(path, mounts, 32)
    problems.unique(path, (mount.mount_path for mount in mounts), "mount_path")
    for at, mount in enumerate(mounts):
        problems.check(f"{path}[{at}].name", mount.name in volumes, f"no volume {mount.name!r} in the template")
        target = mount.mount_path
        clean = target.startswith("/") and posixpath.normpath(target) == target and target != "/" and "//" not in target
        clean = clean and _CONTROL.search(target) is None
        problems.check(
            f"{path}[{at}].mount_path", clean and len(target) <= 4096, f"{target!r} is no clean absolute path"
        )
        nested = any(o.mount_path != target and f"{target}/".startswith(f"{o.mount_path}/") for o in mounts)
        problems.check(f"{path}[{at}].mount_path", not nested, f"{target!r} lies inside another mount")


def _capabilities(problems: Problems, path: str, value: pb.Capabilities) -> None:
    for name, all_allowed in (("add", False), ("drop", True)):
        entries = getattr(value, name)
        problems.at_most(f"{path}.{name}", entries, 64)
        for at, entry in enumerate(entries):
            where = f"{path}.{name}[{at}]"
            problems.check(where, not entry.startswith("CAP_"), f"{entry!r}: write it without CAP_")
            problems.check(where, entry != "ALL" or all_allowed, "ALL may not be added: name the capabilities")
            problems.check(where, _CAPABILITY.fullmatch(entry) is not None, f"{entry!r} is not a capability")


def _readyz(problems: Problems, path: str, value: pb.ContainerReadyz) -> None:
    if not problems.check(f"{path}.http_get", value.HasField("http_get"), "is required"):
        return
    get = value.http_get
    ok = len(get.path) <= 1024 and _PROBE_PATH.fullmatch(get.path) is not None
    problems.check(f"{path}.http_get.path", ok, f"{get.path!r} must start with '/' and hold no '?' or '#'")
    problems.check(f"{path}.http_get.port", 1 <= get.port <= 65535, "must be 1..65535")
    problems.check(f"{path}.timeout_seconds", 0 <= value.timeout_seconds <= 3600, "must be 1..3600, or 0 for 30")


def _volumes(problems: Problems, path: str, template: pb.ActorTemplate) -> None:
    problems.at_most(f"{path}.volumes", template.volumes, 32)
    problems.unique(f"{path}.volumes", (volume.name for volume in template.volumes), "volume")
    mounted = {mount.name for container in template.containers for mount in container.volume_mounts}
    durable = 0
    for index, volume in enumerate(template.volumes):
        where = f"{path}.volumes[{index}]"
        problems.short(f"{where}.name", volume.name)
        problems.check(where, volume.name in mounted, f"volume {volume.name!r} is mounted by no container")
        kind = problems.one_of(where, volume, ("durable_dir", "external_volume_template", "system_info", "image"))
        if kind == "durable_dir":
            durable += 1
        elif kind == "external_volume_template":
            external = volume.external_volume_template
            problems.long(f"{where}.external_volume_template.storage_class_name", external.storage_class_name)
            try:
                above_zero = quantity.parse(external.capacity) > 0
                problems.check(f"{where}.external_volume_template.capacity", above_zero, "must be above 0")
            except ValueError as error:
                problems.add(f"{where}.external_volume_template.capacity", str(error))
        elif kind == "system_info":
            _system_info(problems, f"{where}.system_info", volume.system_info)
        elif kind == "image":
            rules.image(problems, f"{where}.image.reference", volume.image.reference)
    if template.sandbox_config.sandbox_class == pb.SANDBOX_CLASS_GVISOR:
        problems.check(f"{path}.volumes", durable <= 1, "a gVisor template has at most one durable_dir")


def _system_info(problems: Problems, path: str, value: pb.SystemInfoVolume) -> None:
    problems.at_most(f"{path}.data_sources", value.data_sources, 8)
    paths: list[str] = []
    metadata_sources = 0
    for index, source in enumerate(value.data_sources):
        where = f"{path}.data_sources[{index}]"
        kind = problems.one_of(where, source, ("actor_metadata", "trust_bundle"))
        if kind == "actor_metadata":
            metadata_sources += 1
            items = source.actor_metadata.items
            problems.check(f"{where}.actor_metadata.items", 1 <= len(items) <= 8, "must have 1..8 entries")
            problems.unique(f"{where}.actor_metadata.items", (item.field for item in items), "field")
            for at, item in enumerate(items):
                problems.check(f"{where}.actor_metadata.items[{at}].field", item.field != 0, "is required")
                problems.known(f"{where}.actor_metadata.items[{at}].field", item.field, pb.ActorMetadataField.values())
                _file_path(problems, f"{where}.actor_metadata.items[{at}].path", item.path)
                paths.append(item.path)
        elif kind == "trust_bundle":
            bundle = source.trust_bundle
            known = bundle.name in _BUNDLES and not bundle.names
            problems.check(f"{where}.trust_bundle.name", known, f"must be one of {sorted(_BUNDLES)}")
            _file_path(problems, f"{where}.trust_bundle.path", bundle.path)
            paths.append(bundle.path)
    problems.check(f"{path}.data_sources", metadata_sources <= 1, "has more than one actor_metadata")
    problems.unique(f"{path}.data_sources", paths, "path")
    for inner in paths:
        outer = next((other for other in paths if inner.startswith(f"{other}/")), None)
        problems.check(f"{path}.data_sources", outer is None, f"{inner!r} cannot lie below {outer!r}: that is a file")


def _file_path(problems: Problems, path: str, value: str) -> None:
    parts = value.split("/")
    ok = 0 < len(value) <= 255 and len(parts) <= 16 and all(part not in ("", ".", "..") for part in parts)
    ok = ok and _CONTROL.search(value) is None
    problems.check(path, ok, f"{value!r} is no clean relative path of at most 16 segments")


def _lifecycle(problems: Problems, path: str, value: pb.Lifecycle) -> None:
    if value.HasField("idle_timeout"):
        problems.duration(f"{path}.idle_timeout", value.idle_timeout, least=1)
    if value.HasField("drain_grace"):
        problems.duration(f"{path}.drain_grace", value.drain_grace, least=0, most=600)
    if value.HasField("max_lifetime"):
        problems.duration(f"{path}.max_lifetime", value.max_lifetime, least=1)
    problems.known(f"{path}.on_crash", value.on_crash, pb.OnCrash.values())
