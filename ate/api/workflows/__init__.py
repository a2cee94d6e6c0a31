"""Everything that moves an actor, tag, template or worker through more than one step.

Each workflow reads what is stored, does the next step, and stores that; it can be killed anywhere and entered again.
Writes are compare-and-swap on uid and version; the lease of `operations.py` only keeps two callers from doing the same
work on a node at once.
"""
