"""Kinds of Kubernetes resources that we touch, and where the API server keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple


class Name(NamedTuple):
    """Of one object; `namespace` is empty for kinds of the whole cluster."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


Object = dict[str, Any]
"""As the API server speaks of it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """`group` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of the URL; without a name of the whole list, without a namespace of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        parts += [part for part in (name, subresource) if part]
        return "/" + "/".join(parts)


def name_of(found: Object) -> Name:
    """Of an object with metadata."""
    return Name(found["metadata"].get("namespace", ""), found["metadata"]["name"])


def version_of(found: Object) -> str:
    return str(found["metadata"].get("resourceVersion", ""))


PODS: Final = Resource("", "v1", "pods", "Pod")
SERVICES: Final = Resource("", "v1", "services", "Service")
SECRETS: Final = Resource("", "v1", "secrets", "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", "Deployment")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
