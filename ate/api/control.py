"""The Control service: one method an RPC, each a line that hands a checked request to the room it belongs to."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from google.protobuf.message import Message

from ate.api import actors, atespaces, egress, tags, templates, workers
from ate.api.access import policies
from ate.api.access.gate import is_from, node_of
from ate.api.access.table import Machine
from ate.api.context import Context
from ate.api.kinds import ACTORS, WORKERS
from ate.api.minting import Minter
from ate.api.validation.problems import Problems, reject_unknown_fields
from ate.api.workflows import resume, revert, suspend
from ate.proto import ateapi_pb2 as pb
from ate.proto.ateapi_grpc import ControlBase
from ate.rpc import Call, server_streaming, unary
from ate.store import EventType

Request = TypeVar("Request", bound=Message)
Reply = TypeVar("Reply", bound=Message)
Self = TypeVar("Self")


def checked(
    method: Callable[[Self, Request, Call], Coroutine[Any, Any, Reply]],
) -> Callable[[Self, Any], Coroutine[Any, Any, None]]:
    """A unary method that refuses requests with fields this server does not know."""

    async def handler(self: Self, request: Request, call: Call) -> Reply:
        reject_unknown_fields(request)
        return await method(self, request, call)

    return unary(handler)


class Control(ControlBase):
    """See ateapi.proto for what each method promises."""

    def __init__(self, ctx: Context, minter: Minter) -> None:
        self._ctx, self._minter = ctx, minter

    @checked
    async def CreateAtespace(self, request: pb.CreateAtespaceRequest, call: Call) -> pb.Atespace:
        return await atespaces.create(self._ctx, request)

    @checked
    async def GetAtespace(self, request: pb.GetAtespaceRequest, call: Call) -> pb.Atespace:
        return await atespaces.get(self._ctx, request)

    @checked
    async def DeleteAtespace(self, request: pb.DeleteAtespaceRequest, call: Call) -> pb.Atespace:
        return await atespaces.delete(self._ctx, request)

    @checked
    async def ListAtespaces(self, request: pb.ListAtespacesRequest, call: Call) -> pb.ListAtespacesResponse:
        return await atespaces.list_(self._ctx, request)

    @checked
    async def CreateActorTemplate(self, request: pb.CreateActorTemplateRequest, call: Call) -> pb.ActorTemplate:
        return await templates.create(self._ctx, request)

    @checked
    async def GetActorTemplate(self, request: pb.GetActorTemplateRequest, call: Call) -> pb.ActorTemplate:
        return await templates.get(self._ctx, request)

    @checked
    async def DeleteActorTemplate(self, request: pb.DeleteActorTemplateRequest, call: Call) -> pb.ActorTemplate:
        return await templates.delete(self._ctx, request)

    @checked
    async def ListActorTemplates(
        self, request: pb.ListActorTemplatesRequest, call: Call
    ) -> pb.ListActorTemplatesResponse:
        return await templates.list_(self._ctx, request)

    @checked
    async def CreateActor(self, request: pb.CreateActorRequest, call: Call) -> pb.Actor:
        return await actors.create(self._ctx, request)

    @checked
    async def GetActor(self, request: pb.GetActorRequest, call: Call) -> pb.Actor:
        return await actors.get(self._ctx, request)

    @checked
    async def UpdateActor(self, request: pb.UpdateActorRequest, call: Call) -> pb.Actor:
        return await actors.update(self._ctx, request)

    @checked
    async def ListActors(self, request: pb.ListActorsRequest, call: Call) -> pb.ListActorsResponse:
        return await actors.list_(self._ctx, request)

    @checked
    async def CreateTag(self, request: pb.CreateTagRequest, call: Call) -> pb.Tag:
        return await tags.create(self._ctx, request)

    @checked
    async def GetTag(self, request: pb.GetTagRequest, call: Call) -> pb.Tag:
        return await tags.get(self._ctx, request)

    @checked
    async def UpdateTag(self, request: pb.UpdateTagRequest, call: Call) -> pb.Tag:
        return await tags.update(self._ctx, request)

    @checked
    async def DeleteTag(self, request: pb.DeleteTagRequest, call: Call) -> pb.Tag:
        return await tags.delete(self._ctx, request)

    @checked
    async def ListTags(self, request: pb.ListTagsRequest, call: Call) -> pb.ListTagsResponse:
        return await tags.list_(self._ctx, request)

    @checked
    async def CreateWorker(self, request: pb.CreateWorkerRequest, call: Call) -> pb.Worker:
        return await workers.create(self._ctx, request)

    @checked
    async def GetWorker(self, request: pb.GetWorkerRequest, call: Call) -> pb.Worker:
        return await workers.get(self._ctx, request)

    @checked
    async def UpdateWorker(self, request: pb.UpdateWorkerRequest, call: Call) -> pb.Worker:
        return await workers.update(self._ctx, request)

    @checked
    async def DeleteWorker(self, request: pb.DeleteWorkerRequest, call: Call) -> pb.Worker:
        return await workers.delete(self._ctx, request)

    @checked
    async def DrainWorker(self, request: pb.DrainWorkerRequest, call: Call) -> pb.Worker:
        return await workers.drain(self._ctx, request)

    @checked
    async def ListWorkers(self, request: pb.ListWorkersRequest, call: Call) -> pb.ListWorkersResponse:
        return await workers.list_(self._ctx, request)

    @checked
    async def ListWorkerActorAssignments(
        self, request: pb.ListWorkerActorAssignmentsRequest, call: Call
    ) -> pb.ListWorkerActorAssignmentsResponse:
        return await workers.list_assignments(self._ctx, request)

    # -- lifecycle ------------------------------------------------------------------------------------------------

    @checked
    async def ResumeActor(self, request: pb.ResumeActorRequest, call: Call) -> pb.ResumeActorResponse:
        ref = actors.ref_of(request.HasField("actor"), request.actor)
        routed = is_from(call, Machine.ROUTER)
        actor, resumed = await resume.resume(self._ctx, ref, boot=request.boot, revert_crashed=routed)
        return pb.ResumeActorResponse(actor=actor, resumed=resumed)

    @checked
    async def SuspendActor(self, request: pb.SuspendActorRequest, call: Call) -> pb.SuspendActorResponse:
        ref = actors.ref_of(request.HasField("actor"), request.actor)
        return pb.SuspendActorResponse(actor=await suspend.suspend(self._ctx, ref))

    @checked
    async def PauseActor(self, request: pb.PauseActorRequest, call: Call) -> pb.PauseActorResponse:
        ref = actors.ref_of(request.HasField("actor"), request.actor)
        return pb.PauseActorResponse(actor=await suspend.pause(self._ctx, ref))

    @checked
    async def RevertActor(self, request: pb.RevertActorRequest, call: Call) -> pb.RevertActorResponse:
        ref = actors.ref_of(request.HasField("actor"), request.actor)
        return pb.RevertActorResponse(actor=await revert.revert(self._ctx, ref))

    @checked
    async def DeleteActor(self, request: pb.DeleteActorRequest, call: Call) -> pb.Actor:
        ref = actors.ref_of(request.HasField("actor"), request.actor, request.options)
        return await revert.delete(self._ctx, ref, any_state=request.any_state, options=request.options)

    # -- watches --------------------------------------------------------------------------------------------------

    @server_streaming
    async def WatchActors(self, request: pb.WatchActorsRequest, call: Call) -> None:
        reject_unknown_fields(request)
        problems = Problems()
        problems.short("atespace", request.atespace, required=False)
        problems.raise_if_any()
        scope = request.atespace or None
        async with self._ctx.store.watch(ACTORS, scope=scope, resume_token=request.resume_token) as feed:
            async for event in feed:
                answer = pb.WatchActorsResponse(type=_type(event.type), resume_token=event.resume_token)
                if event.row is not None:
                    answer.actor.CopyFrom(event.row.value)
                await call.send(answer)

    @server_streaming
    async def WatchWorkers(self, request: pb.WatchWorkersRequest, call: Call) -> None:
        reject_unknown_fields(request)
        async with self._ctx.store.watch(WORKERS, resume_token=request.resume_token) as feed:
            async for event in feed:
                answer = pb.WatchWorkersResponse(type=_type(event.type), resume_token=event.resume_token)
                if event.row is not None:
                    answer.worker.CopyFrom(event.row.value)
                await call.send(answer)

    # -- egress policies ---------------------------------------------------------------------------------------------

    @checked
    async def CreateActorEgressPolicy(self, request: pb.CreateActorEgressPolicyRequest, call: Call) -> pb.EgressPolicy:
        return await egress.create(self._ctx, request)

    @checked
    async def GetActorEgressPolicy(self, request: pb.GetActorEgressPolicyRequest, call: Call) -> pb.EgressPolicy:
        return await egress.get(self._ctx, request)

    @checked
    async def UpdateActorEgressPolicy(self, request: pb.UpdateActorEgressPolicyRequest, call: Call) -> pb.EgressPolicy:
        return await egress.update(self._ctx, request)

    @checked
    async def DeleteActorEgressPolicy(self, request: pb.DeleteActorEgressPolicyRequest, call: Call) -> pb.EgressPolicy:
        return await egress.delete(self._ctx, request)

    # -- credentials, access policies -------------------------------------------------------------------------------

    @checked
    async def MintActorJWT(self, request: pb.MintActorJWTRequest, call: Call) -> pb.MintActorJWTResponse:
        return await self._minter.actor_jwt(request, node_of(call))

    @checked
    async def MintActorCertificate(
        self, request: pb.MintActorCertificateRequest, call: Call
    ) -> pb.MintActorCertificateResponse:
        chain = await self._minter.actor_certificate(request, node_of(call))
        return pb.MintActorCertificateResponse(actor_certificates=chain)

    @checked
    async def CreateGlobalAccessPolicy(
        self, request: pb.CreateGlobalAccessPolicyRequest, call: Call
    ) -> pb.AccessPolicy:
        return await policies.create_global(self._ctx, request)

    @checked
    async def GetGlobalAccessPolicy(self, request: pb.GetGlobalAccessPolicyRequest, call: Call) -> pb.AccessPolicy:
        return await policies.get_global(self._ctx, request)

    @checked
    async def UpdateGlobalAccessPolicy(
        self, request: pb.UpdateGlobalAccessPolicyRequest, call: Call
    ) -> pb.AccessPolicy:
        return await policies.update_global(self._ctx, request)

    @checked
    async def CreateAtespaceAccessPolicy(
        self, request: pb.CreateAtespaceAccessPolicyRequest, call: Call
    ) -> pb.AccessPolicy:
        return await policies.create(self._ctx, request)

    @checked
    async def GetAtespaceAccessPolicy(self, request: pb.GetAtespaceAccessPolicyRequest, call: Call) -> pb.AccessPolicy:
        return await policies.get(self._ctx, request)

    @checked
    async def UpdateAtespaceAccessPolicy(
        self, request: pb.UpdateAtespaceAccessPolicyRequest, call: Call
    ) -> pb.AccessPolicy:
        return await policies.update(self._ctx, request)

    @checked
    async def DeleteAtespaceAccessPolicy(
        self, request: pb.DeleteAtespaceAccessPolicyRequest, call: Call
    ) -> pb.AccessPolicy:
        return await policies.delete(self._ctx, request)


def _type(type_: EventType) -> str:
    """Event types share their numbers with the wire's."""
    return pb.WatchEventType.Name(type_)
