"""The router: takes HTTP requests for actors, wakes the actor if it sleeps, and carries bytes both ways.

`proxy.py`, `exchange.py` and `wire.py` run in the asyncio thread and look routes up in its memory; only a miss crosses
over to trio, where `resolver.py` joins the one resume flight of the actor, and upgrades, which live in trio. Without
I/O, `headers.py`, `parking.py` and `answers.py` decide.
"""
