"""The way of requests into an actor; see server.py."""

from ate.node.tunnel.admission import Admission, Admitted
from ate.node.tunnel.server import ContextProvider, Tunnel, dial_actor

__all__ = ["Admission", "Admitted", "ContextProvider", "Tunnel", "dial_actor"]
