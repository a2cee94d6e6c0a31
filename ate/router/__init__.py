"""The router: takes HTTP requests for actors, wakes the actor if it sleeps, and carries bytes both ways.

`proxy.py` and `upgrade.py` run in the asyncio thread and look routes up in its memory; only a miss crosses over to
trio, where `resolver.py` joins the one resume flight of the actor. `parking.py` and `answers.py` decide, without I/O.
"""
