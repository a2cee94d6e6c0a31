"""Networks of actors on a worker; see pool.py."""

from ate.node.network.pool import ACTOR_MAC, ACTOR_PREFIX, GATEWAY_MAC, ActorNetwork, NetworkPool, open_network_pool

__all__ = ["ACTOR_MAC", "ACTOR_PREFIX", "GATEWAY_MAC", "ActorNetwork", "NetworkPool", "open_network_pool"]
