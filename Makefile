# Every target sets itself up: `make demo` or `make test` in a bare clone on a fresh Debian 12 machine is enough.
.PHONY: demo check test bench binary proto setup
PY := .venv/bin/python
setup:
	@packaging/setup.sh
proto: setup
	$(PY) ate/proto/generate.py
