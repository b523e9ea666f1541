# `make run` shows it, `make test` checks it; both make what they need. Everything else is for those who build it.
SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
PYTHON ?= python3
BIN := .venv/bin
SEED ?= 1
SIMULATED ?= 32
LISTEN ?=
ONCE ?= 0
# The wire. Of these there are servers or clients over grpcio, the agent speaks by hand.
WIRE := build/names/gangline/contract/wire
GRPC := telemetry score job nvhcd permit query admin advisory outcome recording placement recovery reservation decision interference

.PHONY: run test test-slow lint types pyright unit slow fix ext proto docs bench evaluate load fuzz soak soak-gpu soak-executor soak-kubernetes rigs test-duckdb2 test-lowest wheel client packages test-packages test-hosts soak-packages repository image clean system

YES := 1 yes true on
NO := 0 no false off

run: .venv/ready
	$(if $(filter-out $(YES) $(NO),$(ONCE)),$(error ONCE=$(ONCE): expected one of $(YES) or $(NO)))
	$(BIN)/gangline run --simulated $(SIMULATED) --seed $(SEED) $(if $(LISTEN),--listen $(LISTEN)) $(if $(filter $(YES),$(ONCE)),--once)

# Before each commit, at most 6 minutes on two cores: style, types, and all tests but those marked `slow`.
# The types are checked beside the tests.
test: .venv/ready-dev lint
	@$(MAKE) --no-print-directory --jobs=2 types unit

lint: .venv/ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: .venv/ready-dev
	$(BIN)/mypy

# Before a release and every night, at most 20 minutes on two cores: what `make test` leaves out. The tests marked `slow`,
# each property with 100 examples, and the same annotations read by pyright.
test-slow: .venv/ready-dev
	@$(MAKE) --no-print-directory --jobs=2 pyright slow

pyright: .venv/ready-dev
	$(BIN)/pyright

# What is imported is compiled once and kept, whatever the environment says of that: four workers collect all tests,
# and these start a thousand processes. In a fresh clone the first line compiles, so that the workers do not, all of them the same.
PYTEST := $(BIN)/pytest -q -n 4 --dist loadfile --no-loadscope-reorder --max-worker-restart 0
unit slow: export PYTHONDONTWRITEBYTECODE :=
unit: .venv/ready-dev
	-@[ -e tests/__pycache__ ] || $(BIN)/pytest -qq --collect-only >/dev/null 2>&1
	$(PYTEST) -m "not slow"

slow: .venv/ready-dev
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile thorough

bench: .venv/ready-dev
	$(BIN)/python -m bench --seed $(SEED)

# How good judging is: real, injected, simulated; into docs/quality.md. PER_CLASS=2 HOURS=1 is quicker, and says less;
# HOURS=75 looks at so much that false drains are shown to be below their budget, if none is seen and no more than two come
# of one cause (two hours on two cores); RESUME=1 goes on with what a run before it had done, to the episode (same commit, same settings).
# Leave the checkout alone meanwhile: where it changes, the page says so, and what was made since is not kept.
evaluate: SEED = 24
evaluate: .venv/ready-dev
	$(BIN)/python -m bench.quality --seed $(SEED) $(if $(PER_CLASS),--per-class $(PER_CLASS)) $(if $(HOURS),--hours $(HOURS)) $(if $(RESUME),--resume)
	$(BIN)/python -m bench.quality.jobs $(if $(filter-out 24,$(SEED)),--seed $(SEED))
	$(BIN)/python -m bench.quality.placement --write $(if $(filter-out 24,$(SEED)),--seed $(SEED))
	$(BIN)/python -m bench.quality.interference $(if $(filter-out 24,$(SEED)),--seed $(SEED))

# A whole fleet against an aggregator on this machine: what it sustains, and what that costs.
load: .venv/ready-dev
	$(BIN)/python -m bench.load --hosts $(or $(HOSTS),400) --seconds $(or $(SECONDS),60) --seed $(SEED)

fuzz: .venv/ready-dev
	$(BIN)/python -m tests.fuzz --seconds 60 --seed $(SEED)
	$(BIN)/python -m tests.aggregator.advisories.walk --steps 1000000 --seed $(SEED)

# The tests of the store on DuckDB 2.0.x; `make test` runs a slice of it.
test-duckdb2: .venv/ready-dev
	$(BIN)/python -m tests.duckdb2

# Tests of every part with the oldest versions of all dependencies that pyproject.toml declares; `make test-slow` runs most of them.
test-lowest: .venv/ready-dev
	$(BIN)/python -m tests.lowest

# Random faults against a real aggregator, round by round: what was acknowledged is there once.
soak: .venv/ready-dev
	$(BIN)/python -m tests.soak --rounds $(or $(ROUNDS),200) --seed $(SEED)

# One of eight GPUs hangs for 45 s: who was sampled on time. SECONDS=3600 is the hour that is promised.
soak-gpu: .venv/ready-dev
	$(BIN)/python -m tests.soak_gpu --seconds $(or $(SECONDS),600) --seed $(SEED)

# Faults of nodes and kills of the executor in a real Slurm: no job lost, no mark past its expiry.
soak-executor: .venv/ready-dev
	$(BIN)/python -m tests.soak_executor --rounds $(or $(ROUNDS),200) --seed $(SEED)

# The same over a real API server of Kubernetes, at random calls: no mark past its expiry, nobody's taint lost, no budget broken.
soak-kubernetes: .venv/ready-dev
	$(BIN)/python -m tests.soak_kubernetes --rounds $(or $(ROUNDS),200) --seed $(SEED)

# The real programs that tests can use and that no package installs, each into a folder of its own under FOLDER, outside the checkout.
rigs:
	@[ -n "$(FOLDER)" ] || { echo "usage: make rigs FOLDER=/somewhere (outside the checkout)" >&2; exit 2; }
	@case "$(abspath $(FOLDER))/" in "$(CURDIR)"/*) echo "FOLDER is within the checkout; name one outside, as FOLDER=$$HOME/gangline-rigs" >&2; exit 2;; esac
	@set -e; for script in tests/rigs/*.sh; do name=$$(basename "$$script" .sh); echo "making $$name: $$(sed -n 2p "$$script" | cut -c3-)"; \
		bash "$$script" "$(abspath $(FOLDER))/$$name"; done
	@for script in tests/rigs/*.sh; do sed -n "s|^# *tests/rigs/.*; \(export .*\)FOLDER|\1$(abspath $(FOLDER))/$$(basename $$script .sh)|p" "$$script"; done

fix: .venv/ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# What pip cannot install, named with the line that installs it.
system:
	@command -v $(PYTHON) >/dev/null || { echo "missing: Python 3.11 or later; install it with: sudo apt-get install python3 python3-venv python3-dev" >&2; exit 1; }
	@$(PYTHON) -c '' || { echo "$(PYTHON) does not run (its own words are above); name another: make PYTHON=/usr/bin/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "missing: venv; install it with: sudo apt-get install python3-venv" >&2; exit 1; }
	@command -v $${CC:-cc} >/dev/null || { echo "missing: a C compiler; install it with: sudo apt-get install gcc libc6-dev" >&2; exit 1; }
	@$(PYTHON) -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' || { echo "missing: Python.h; install it with: sudo apt-get install python3-dev" >&2; exit 1; }

INSTALLED_FROM := pyproject.toml setup.py packaging/constraints.txt $(wildcard ext/*.pyx ext/*.pxd)
PIP := PYTHONWARNINGS=ignore $(BIN)/pip --disable-pip-version-check
# Shows a line for each package and each module that pip handles. Everything pip says is in .venv/pip.log; its end
# is shown if pip fails.
SHOWN := -e 's/^ *Collecting \([^ ;(<>=!~]*\).*/  package \1/p' \
	-e 's/^ *\[ *\([0-9]*\)\/\([0-9]*\)\] Cythonizing \(.*\)/  Cython \1 of \2: \3/p' \
	-e "s/^ *building '\(gangline[^']*\)' extension/  compiling \1/p"
SHOW := 2>&1 | tee .venv/pip.log | sed -un $(SHOWN) || { echo "pip failed:" >&2; tail -n 40 .venv/pip.log >&2; exit 1; }

.venv/made: | system
	@echo "1 of 2: making the environment .venv with pip, setuptools, Cython"
	@$(PYTHON) -m venv .venv
	@$(PIP) install -c packaging/constraints.txt 'pip>=25.1' 'setuptools>=80' 'Cython>=3.3,<4' $(SHOW)
	@touch $@

# Compiles ext/ and installs gangline, editable, into .venv.
.venv/ready: .venv/made $(INSTALLED_FROM)
	@echo "2 of 2: installing packages and compiling the Cython modules (about a minute the first time)"
	@$(PIP) install -v -c packaging/constraints.txt --no-build-isolation -e '.[agent,aggregator,executor,simulate]' $(SHOW)
	@touch $@

.venv/ready-dev: .venv/ready build/names/gangline
	@echo "installing what tests need"
	@$(PIP) install -c packaging/constraints.txt --group dev $(SHOW)
	@touch $@

# One link gives path-minded tools (mypy, pyright, protoc) the import name `gangline`.
build/names/gangline:
	mkdir -p build/names
	ln -sfn ../.. build/names/gangline

# Compile ext/ again without asking pip about anything else.
ext: .venv/made
	@$(PIP) install -v --no-build-isolation --no-deps -e . $(SHOW)

# Generated code refuses a grpcio that is older than its generator: that is the oldest that pyproject.toml allows.
OLDEST_GRPC = $(shell sed -n 's/.*"grpcio>=\([0-9.]*\)".*/\1/p' pyproject.toml | head -n 1)
PROTOC = PYTHONPATH=build/protoc-$(OLDEST_GRPC) $(BIN)/python -m grpc_tools.protoc -I build/names
proto: .venv/ready-dev
	@[ -d build/protoc-$(OLDEST_GRPC) ] || $(PIP) install -q --only-binary :all: --target build/protoc-$(OLDEST_GRPC) grpcio-tools==$(OLDEST_GRPC)
	$(PROTOC) --python_out=build/names --pyi_out=build/names $(WIRE)/*.proto
	$(PROTOC) --grpc_python_out=build/names $(GRPC:%=$(WIRE)/%.proto)
	$(BIN)/python packaging/build/compact_wire.py contract/wire/*_pb2*.py

docs: .venv/ready-dev
	$(BIN)/python -m tests.contract.signals_page > docs/signals.md
	$(BIN)/python -m tests.contract.faults_page > docs/faults.md
	$(BIN)/python -m tests.contract.settings_page > docs/settings.md
	$(BIN)/python -m tests.aggregator.sql_page
	$(BIN)/python docs/parts.py
	$(BIN)/python -m bench.quality.pictures

wheel: .venv/ready-dev
	$(BIN)/python -m build

# What a scheduler's client needs: the wheel gangline-client and the .proto files, into dist/ (docs/placement.md).
client:
	$(PYTHON) -B packaging/build/client.py

# gangline-runtime, -agent and -aggregator as deb and rpm, into dist/ (docs/install.md). The first time it compiles OpenSSL and CPython;
# RUNTIME=FILE RUNTIME_SHA256=HEX takes a runtime that is built already, SOURCES=FOLDER the archives, ONLY=PACKAGE one of the packages.
packages:
	$(PYTHON) -B packaging/build/packages.py $(if $(RUNTIME),--runtime $(RUNTIME) --runtime-sha256 '$(RUNTIME_SHA256)') $(if $(SOURCES),--sources $(SOURCES)) $(ONLY:%=--only %)

# What is in them, and that they install in an empty Debian that boots (as root, with mmdebstrap and systemd-container).
test-packages: packages .venv/ready-dev
	GANGLINE_PACKAGES=dist $(BIN)/pytest -q tests/packages

# The images of agent and aggregator as OCI layouts, into dist/image: Debian's packages and those of `make packages`, no base image.
# DEBS=FOLDER takes the debs from there; SUITE=, MIRROR=URL (a snapshot, to make the same bytes again later), ONLY=PACKAGE.
image:
	$(PYTHON) -B packaging/image/image.py $(DEBS:%=--debs %) $(SUITE:%=--suite %) $(MIRROR:%=--mirror %) $(ONLY:%=--only %)

# The same on every Debian that is supported, booted: SUITES="bullseye bookworm trixie".
test-hosts: packages .venv/ready-dev
	GANGLINE_PACKAGES=dist GANGLINE_SUITES='$(or $(SUITES),bullseye bookworm trixie)' $(BIN)/pytest -q tests/packages/test_install.py tests/packages/test_page.py

# 20 upgrades and 20 downgrades of an agent that samples, 5 of them killed in the middle: nothing lost, nothing doubled.
soak-packages: .venv/ready-dev
	$(BIN)/python -m tests.soak_packages --packages dist --rounds $(or $(ROUNDS),40) --kills $(or $(KILLS),5) --seed $(SEED)

# A signed repository for apt and dnf from dist/: make repository KEY=SECRET.asc TO=FOLDER [MINISIGN_KEY=FILE] [PASSPHRASE_FILE=FILE].
repository:
	$(PYTHON) -B packaging/build/repository.py --packages dist --to '$(or $(TO),repository)' --key '$(KEY)' $(if $(MINISIGN_KEY),--minisign-key '$(MINISIGN_KEY)') $(if $(PASSPHRASE_FILE),--passphrase-file '$(PASSPHRASE_FILE)')

clean:
	git clean -fdX -e '!.venv'
