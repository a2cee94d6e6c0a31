"""grpc.reflection v1 and v1alpha, built into every `Server`, so that grpcurl and the like work without .proto files.

Both versions have the same messages under different names; one implementation serves both, from protobuf's pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpclib.const import Status
from grpclib.reflection.v1 import reflection_pb2 as v1
from grpclib.reflection.v1.reflection_grpc import ServerReflectionBase as V1Base
from grpclib.reflection.v1alpha import reflection_pb2 as v1alpha
from grpclib.reflection.v1alpha.reflection_grpc import ServerReflectionBase as V1AlphaBase


def reflection_services(services: Sequence[str]) -> tuple[V1Base, V1AlphaBase]:
    """Reflection over `services` (full names) and over everything in protobuf's default pool."""
    names = sorted({*services, "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"})
    return _V1(_Answers(v1, names)), _V1Alpha(_Answers(v1alpha, names))


class _V1(V1Base):
    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    async def ServerReflectionInfo(self, stream: Any) -> None:
        async for request in stream:
            await stream.send_message(self._answers.answer(request))


class _V1Alpha(V1AlphaBase):
    def __init__(self, answers: _Answers) -> None:
        self._answers = answers

    async def ServerReflectionInfo(self, stream: Any) -> None:
        async for request in stream:
            await stream.send_message(self._answers.answer(request))


class _Answers:
    def __init__(self, messages: Any, services: list[str]) -> None:
        self._pb = messages
        self._services = services
        self._pool: Any = descriptor_pool.Default()

    def answer(self, request: Any) -> Any:
        response = self._pb.ServerReflectionResponse(valid_host=request.host, original_request=request)
        kind = request.WhichOneof("message_request")
        try:
            match kind:
                case "list_services":
                    response.list_services_response.service.extend(
                        self._pb.ServiceResponse(name=name) for name in self._services
                    )
                case "file_by_filename":
                    self._add_files(response, self._pool.FindFileByName(request.file_by_filename))
                case "file_containing_symbol":
                    self._add_files(response, self._pool.FindFileContainingSymbol(request.file_containing_symbol))
                case "file_containing_extension":
                    wanted = request.file_containing_extension
                    message = self._pool.FindMessageTypeByName(wanted.containing_type)
                    extension = self._pool.FindExtensionByNumber(message, wanted.extension_number)
                    self._add_files(response, extension.file)
                case "all_extension_numbers_of_type":
                    message = self._pool.FindMessageTypeByName(request.all_extension_numbers_of_type)
                    response.all_extension_numbers_response.base_type_name = message.full_name
                    response.all_extension_numbers_response.extension_number.extend(
                        extension.number for extension in self._pool.FindAllExtensions(message)
                    )
                case _:
                    response.error_response.error_code = Status.INVALID_ARGUMENT.value
                    response.error_response.error_message = "the request asks for nothing this server knows"
        except KeyError:
            response.error_response.error_code = Status.NOT_FOUND.value
            response.error_response.error_message = f"not found: {getattr(request, kind)}"[:300]
        return response

    def _add_files(self, response: Any, file: FileDescriptor) -> None:
        """The file and all it imports, once each: clients then need no further round trips."""
        seen: set[str] = set()
        todo = [file]
        while todo:
            current = todo.pop()
            if current.name in seen:
                continue
            seen.add(current.name)
            proto = FileDescriptorProto()
            current.CopyToProto(proto)
            response.file_descriptor_response.file_descriptor_proto.append(proto.SerializeToString())
            todo.extend(current.dependencies)
