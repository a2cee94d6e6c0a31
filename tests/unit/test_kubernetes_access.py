"""Promises of how a cluster is found: what is wrong with a kubeconfig is said, and never a crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from ate.controller.kubernetes.access import Source, load_access
from ate.errors import FailedPrecondition

CONTEXT = (
    "{current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {}}], "
    "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: %s}}]}"
)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"- 1",
        b"\xff\xfe\x00",
        b"{current-context: gone, contexts: [], clusters: [], users: []}",
        (CONTEXT % "/nowhere.pem").encode(),
        (CONTEXT % "/etc/hostname").encode(),
    ],
)
async def test_an_unusable_kubeconfig_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "kubeconfig"
    file.write_bytes(content)
    with pytest.raises(FailedPrecondition, match=r"(?s)no access to a Kubernetes cluster: .*--kubeconfig"):
        await load_access(Source(str(file)))


async def test_a_missing_kubeconfig_and_an_unknown_context_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match="no access"):
        await load_access(Source(str(tmp_path / "none")))
    file = tmp_path / "kubeconfig"
    file.write_text(CONTEXT % "''")
    with pytest.raises(FailedPrecondition, match="no access"):
        await load_access(Source(str(file), "other"))
