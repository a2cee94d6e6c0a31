"""gRPC over trio: server, channel, health, reflection and interceptors, under grpclib's generated code.

HTTP/2 framing is `h2`'s; transport, flow control, deadlines and errors are ours. Every role talks through this package.
"""

from ate.rpc.call import Call, ServerStream
from ate.rpc.client import Channel
from ate.rpc.client_stream import ClientStream
from ate.rpc.connection import Keepalive, Tuning
from ate.rpc.handlers import Interceptor, server_streaming, unary
from ate.rpc.listen import Peer, RpcListener, TlsProvider, open_tcp_listener, open_unix_listener
from ate.rpc.pool import ChannelPool, open_channel_pool
from ate.rpc.server import IServable, Server

__all__ = [
    "Call",
    "Channel",
    "ChannelPool",
    "ClientStream",
    "IServable",
    "Interceptor",
    "Keepalive",
    "Peer",
    "RpcListener",
    "Server",
    "ServerStream",
    "TlsProvider",
    "Tuning",
    "open_channel_pool",
    "open_tcp_listener",
    "open_unix_listener",
    "server_streaming",
    "unary",
]
