# Every target sets itself up: `make demo` or `make test` in a bare clone on a fresh Debian 12 machine is enough.
.PHONY: demo check test test-kubernetes sim bench binary image proto lock
PY := .venv/bin/python
export PYTHONPATH := $(CURDIR)

# The main job: an actor asleep and awake on real gVisor.
demo:
	@packaging/setup.sh run
	@$(PY) demos/counter/demo.py $(DEMO)

# Fast: lint, types, generated code, and everything that needs no socket.
check:
	@packaging/setup.sh test
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy
	@$(PY) ate/proto/generate.py --check
	@$(PY) -m pytest tests/unit

# Everything, on real parts. Simulations need no more than the time that real sandboxes leave idle.
test: check
	@packaging/build-runsc.sh build/runsc || echo "newest runsc not built: the driver suite runs on the packaged one"
	@mkdir -p build; \
	nice -n 19 $(PY) -m pytest tests/simulation > build/simulation.log 2>&1 & simulation=$$!; \
	trap 'kill $$simulation' INT TERM; \
	$(PY) -m pytest tests/security tests/system; system=$$?; \
	wait $$simulation; simulation=$$?; \
	cat build/simulation.log; \
	exit $$((system || simulation))

# On a real Kubernetes of this machine, built from source once (ten minutes). Not part of `test` before the controller is.
test-kubernetes:
	@packaging/setup.sh test
	@$(PY) -m pytest tests/kubernetes

# The simulated platform under a seeded adversary: make sim N=10000 SEED=1
N ?= 1000
SEED ?= 1
sim:
	@packaging/setup.sh test
	@$(PY) -m tests.simulation.sim --n $(N) --seed $(SEED)

bench:
	@packaging/setup.sh test
	@for program in bench/rpc.py bench/resume.py bench/activation.py bench/control_plane.py; do echo "== $$program"; $(PY) $$program || exit 1; done

# One file: dist/ate.
binary:
	@packaging/setup.sh test
	@packaging/binary.sh

# The platform's container image as an OCI archive, no container engine needed: `ctr -n k8s.io images import` takes it.
image: dist/ate
	@packaging/setup.sh test
	@$(PY) packaging/image.py dist/ate dist/ate-image.tar

BINARY_SOURCES := $(shell find ate -name '*.py' -o -name '*.proto') \
	ate.spec packaging/binary.sh packaging/launcher.sh pyproject.toml requirements-dev.lock
dist/ate: $(BINARY_SOURCES)
	@packaging/setup.sh test
	@packaging/binary.sh

proto:
	@packaging/setup.sh test
	@$(PY) ate/proto/generate.py

# Pins what .venv holds now.
lock:
	@$(PY) packaging/lock.py
