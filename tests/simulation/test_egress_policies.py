"""Promise: an actor has at most one egress policy; it is guarded like any resource and goes when its actor goes."""

from __future__ import annotations

import pytest

from ate.api import egress
from ate.api.workflows import revert
from ate.errors import Aborted, AlreadyExists, InvalidArgument, NotFound
from ate.names import Ref
from ate.proto import ateapi_pb2 as pb
from tests.simulation.cluster import Cluster, open_cluster

ACTOR = pb.ObjectRef(atespace="demo", name="a")


def policy(*hosts: str, **metadata: object) -> pb.EgressPolicy:
    return pb.EgressPolicy(
        metadata=pb.ResourceMetadata(name="default", **metadata),  # type: ignore[arg-type]
        rules=[pb.EgressRule(https=pb.HTTPSRule(hostnames=hosts))],
    )


async def create(cluster: Cluster, *hosts: str) -> pb.EgressPolicy:
    return await egress.create(
        cluster.ctx, pb.CreateActorEgressPolicyRequest(actor=ACTOR, egress_policy=policy(*hosts))
    )


async def test_a_policy_is_made_read_replaced_and_removed() -> None:
    async with open_cluster() as cluster:
        await cluster.add_template()
        with pytest.raises(NotFound, match="actor demo/a not found"):
            await create(cluster, "a.com")
        await cluster.add_actor("a")
        with pytest.raises(NotFound, match="everything it asks for outside is denied"):
            await egress.get(cluster.ctx, pb.GetActorEgressPolicyRequest(actor=ACTOR))
        made = await create(cluster, "a.com")
        assert (made.metadata.atespace, made.metadata.name, made.metadata.version) == ("demo", "default", 1)
        with pytest.raises(AlreadyExists, match="demo/a"):
            await create(cluster, "b.com")
        assert await egress.get(cluster.ctx, pb.GetActorEgressPolicyRequest(actor=ACTOR)) == made

        newer = policy("b.com", uid=made.metadata.uid, version=1)
        request = pb.UpdateActorEgressPolicyRequest(actor=ACTOR, egress_policy=newer)
        replaced = await egress.update(cluster.ctx, request)
        assert replaced.rules[0].https.hostnames == ["b.com"] and replaced.metadata.version == 2
        with pytest.raises(Aborted, match="version 2"):
            await egress.update(cluster.ctx, request)
        with pytest.raises(InvalidArgument, match=r"egress_policy\.metadata\.version"):
            bare = pb.UpdateActorEgressPolicyRequest(actor=ACTOR, egress_policy=policy("b.com"))
            await egress.update(cluster.ctx, bare)
        with pytest.raises(InvalidArgument, match="egress_policy: is required"):
            await egress.create(cluster.ctx, pb.CreateActorEgressPolicyRequest(actor=ACTOR))

        stale = pb.DeleteActorEgressPolicyRequest(actor=ACTOR, options=pb.DeleteOptions(version=1))
        with pytest.raises(Aborted):
            await egress.delete(cluster.ctx, stale)
        gone = await egress.delete(cluster.ctx, pb.DeleteActorEgressPolicyRequest(actor=ACTOR))
        assert gone == replaced
        with pytest.raises(NotFound):
            await egress.delete(cluster.ctx, pb.DeleteActorEgressPolicyRequest(actor=ACTOR))


async def test_an_actor_made_anew_under_the_same_name_has_no_policy_of_the_old_one() -> None:
    async with open_cluster() as cluster:
        await cluster.add_template()
        await cluster.add_actor("a")
        await create(cluster, "a.com")
        await revert.delete(cluster.ctx, Ref("demo", "a"), any_state=False, options=pb.DeleteOptions())
        await cluster.add_actor("a")
        with pytest.raises(NotFound, match="no egress policy"):
            await egress.get(cluster.ctx, pb.GetActorEgressPolicyRequest(actor=ACTOR))
        assert (await create(cluster, "b.com")).metadata.version == 1
