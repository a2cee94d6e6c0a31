"""The whole platform in one process, under a virtual clock and a seeded adversary.

Real: api (two of them on one store), atelets, ateom workers with their tunnels, the router's resume logic, all RPCs
over HTTP/2 on in-memory streams, snapshots with their manifests and digests. Models: the sandbox (its RAM is a number),
networks, images, the object store's bytes, the disk's faults. `run.py` runs one schedule; `make sim` runs many.
"""
