"""How a cluster's API server is reached: from a kubeconfig, or from inside a pod.

The `kubernetes` package reads both, exec plug-ins and renewed tokens included; it is loaded only here, when needed, and
makes no request of ours.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio

from ate.errors import FailedPrecondition, Unavailable

_PLAIN: Final = (OSError, ValueError, TypeError, AttributeError, KeyError)
"""What the package raises for files that are YAML of another shape; ssl.SSLError is an OSError."""


@dataclass(frozen=True)
class Source:
    """Where to look. Nothing given: the pod's own service account in a pod, else the user's kubeconfig."""

    kubeconfig: str = ""
    context: str = ""


class Access:
    """`server` is the URL of the API server, `tls` how it is verified and our certificate, if we have one."""

    def __init__(self, server: str, tls: ssl.SSLContext, configuration: Any) -> None:
        self.server, self.tls, self._configuration = server, tls, configuration

    def headers(self) -> dict[str, str]:
        """What authenticates a request now; Unavailable when that cannot be had.

        May read a file or run a plug-in: not for an event loop's thread.
        """
        from kubernetes.config import ConfigException

        try:
            token = self._configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        except (ConfigException, OSError, ValueError) as error:
            raise Unavailable(f"the token for the Kubernetes API server cannot be read now: {error}") from error
        return {"Authorization": token} if token else {}


async def load_access(source: Source) -> Access:
    """Reads everything anew. FailedPrecondition says what is missing."""
    return await trio.to_thread.run_sync(_load, source)


def _load(source: Source) -> Access:
    import yaml
    from kubernetes import config
    from kubernetes.client import Configuration

    load_kube_config: Any = config.load_kube_config
    load_incluster_config: Any = config.load_incluster_config

    configuration = Configuration()
    try:
        if source.kubeconfig or source.context or not _in_pod():
            load_kube_config(
                config_file=source.kubeconfig or None,
                context=source.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            load_incluster_config(client_configuration=configuration)
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (config.ConfigException, yaml.YAMLError, *_PLAIN) as error:
        raise FailedPrecondition(
            f"no access to a Kubernetes cluster: {error}. Give --kubeconfig (and --context), or run in a pod with a "
            "service account"
        )
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return Access(configuration.host.rstrip("/"), tls, configuration)


def _in_pod() -> bool:
    return Path("/var/run/secrets/kubernetes.io/serviceaccount/token").exists()
