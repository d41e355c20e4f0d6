# Everything runs in .venv; a machine needs Python 3.11+, git and make (a C++ compiler makes it faster, see setup.py).
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/installed
NATIVE := $(wildcard setup.py kernels/cpu/*.cpp kernels/cpu/*.h kernels/cpu/*.inc kernels/cpu/*.def)
TESTS ?=
SOAK ?=
WORKERS ?= 2

.PHONY: setup demo test sweep check bench soak peers

# setup: the virtual environment and an editable install, again only when their inputs change
setup: $(STAMP)

# demo: fetch the demo model once and print real answers with tokens/s
demo: $(STAMP)
	$(BIN)/decodex demo

# test: every test, in two processes (TESTS="tests/kernels -k rope" for a part, WORKERS=0 for one process)
test: $(STAMP)
	$(BIN)/pytest -q -n $(WORKERS) --dist loadscope --max-worker-restart 0 $(TESTS)

# sweep: the slow property sweeps and examples, which test leaves out
sweep: $(STAMP)
	$(BIN)/pytest -q -m slow $(TESTS)

# check: ruff, mypy --strict, and every GPU kernel compiled for three GPUs (a minute the first time)
check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/decodex kernels compile

# bench: tokens/s of this checkout on this machine
bench: $(STAMP)
	$(BIN)/decodex bench

# soak: 64 clients for five minutes against the server, then what they got is replayed (SOAK="--seconds 30 --clients 8")
soak: $(STAMP)
	$(BIN)/python evals/server/soak.py $(SOAK)

# peers: a virtual environment for each engine that evals/speed compares with (minutes, some GB)
peers: $(STAMP)
	evals/speed/make_peers.sh

$(STAMP): pyproject.toml $(NATIVE)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "decodex needs Python 3.11 or newer")'
	$(BIN)/pip install -q --disable-pip-version-check -e ".[dev]"
	touch $@
