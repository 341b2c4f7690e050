# What people do here. What a target needs (environments, control plane, images) is made once, into
# ${XDG_CACHE_HOME:-~/.cache}/flashboot, by e2e/setup_env.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.ONESHELL:
.SILENT:
MAKEFLAGS += --no-print-directory

HOST_PYTHON ?= $(firstword $(shell command -v python3.11 python3 || true) python3)
SETUP := PYTHONPATH=e2e $(HOST_PYTHON) -m setup_env
RACK := PYTHONPATH=e2e $(HOST_PYTHON) -m rack
# Expanded in recipes only, so that a target which needs no environment makes none.
DEV = $$($(SETUP) path dev)
ENGINE = $$($(SETUP) path engine)
TOOLS = controlplane=$$($(SETUP) path controlplane)
WITH_TOOLS = FLASHBOOT_CONTROLPLANE_BIN=$$controlplane FLASHBOOT_HELM=$$controlplane/helm FLASHBOOT_KUBECTL=$$controlplane/kubectl
SOURCES := agent operator e2e tests bench conftest.py
FAST_TESTS := tests/unit tests/property tests/component
PYTEST := -m pytest -p no:cacheprovider
# Many component tests wait, so that more of them run at once than there are cores.
WORKERS ?= 3
SIDE_BY_SIDE = -n $(WORKERS) --dist loadscope
FUZZ_SECONDS ?= 20

# C++ that was compiled once, in whatever checkout, is not compiled again.
export CCACHE_DIR := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flashboot/ccache
export CCACHE_BASEDIR := $(CURDIR)
export CCACHE_NOHASHDIR := 1
export CMAKE_CXX_COMPILER_LAUNCHER := ccache
# What mypy and ruff found out about unchanged files, in whatever checkout.
export MYPY_CACHE_DIR := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flashboot/mypy
export RUFF_CACHE_DIR := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/flashboot/ruff

.PHONY: help
help: ## list the targets
	grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

.PHONY: demo
demo: native ## scale a real SGLang from 1 to 4 on a cluster on this machine, and report (KEEP=1 leaves it up)
	if [ -z "$${KUBECONFIG:-}" ]; then $(SETUP) ensure all; fi
	python=$(DEV); cd e2e
	PYTHONPATH=.:../agent:../operator exec $$python -m demo

# Tests with servers and clusters wait half of their time; so that other targets run beside what is on the screen.
define LANES
declare -A lanes=()
trap 'for lane in $${lanes[@]}; do kill -- -$$lane 2> /dev/null || true; done' EXIT
beside() { # TARGET NICENESS
	setsid nice -n $$2 $(MAKE) $$1 > build/$$1.log 2>&1 & lanes[$$1]=$$!
	echo "beside this: make $$1 (build/$$1.log)"
}
ended() { # TARGET
	wait $${lanes[$$1]} || { cat build/$$1.log; echo "make $$1 failed (build/$$1.log, above)"; exit 1; }
	unset "lanes[$$1]"; echo "make $$1:"; tail -n 3 build/$$1.log
}
endef

.PHONY: test
test: native ## everything that CI runs: the engine's tests beside lint and the others, end-to-end tests last
	$(SETUP) ensure system native-checks dev engine example-model controlplane
	$(LANES)
	beside native-checks 15; beside images 5; beside test-engine 5
	$(MAKE) lint generated
	python=$(DEV); engine=$(ENGINE); $(TOOLS)
	model=$$($(SETUP) path example-model)
	export FLASHBOOT_ENGINE_PYTHON=$$engine FLASHBOOT_EXAMPLE_MODEL=$$model
	$(WITH_TOOLS) $$python $(PYTEST) $(SIDE_BY_SIDE) $(FAST_TESTS)
	ended test-engine; ended images
	$(MAKE) e2e
	ended native-checks

.PHONY: e2e
e2e: ## end-to-end tests on a rack, or those of one capability: LABEL=life|drain|rollout|autoscale|bad_input|ranks|sglang|… (KEEP=1 leaves it up)
	python=$(DEV); engine=$(ENGINE); $(TOOLS)
	FLASHBOOT_ENGINE_PYTHON=$$engine $(WITH_TOOLS) $$python $(PYTEST) e2e/tests$(if $(LABEL),/test_$(LABEL).py)

.PHONY: test-engine
test-engine: native ## the plug-in inside the real SGLang: models, identity, ranks, refusals (FLASHBOOT_WRITE_DOCS=1 writes docs/compatibility.md)
	engine=$(ENGINE)
	$$engine -m pytest -c tests/engine/pytest.ini tests/engine

.PHONY: test-fast
test-fast: native ## unit, property and component tests but slow ones and those on a real API server or with torch
	python=$(DEV); $(TOOLS)
	$(WITH_TOOLS) $$python $(PYTEST) $(SIDE_BY_SIDE) $(FAST_TESTS) -m "not apiserver and not engine and not slow"

.PHONY: lint
lint: ## ruff, mypy --strict, import layers
	python=$(DEV)
	$$python -m ruff check $(SOURCES)
	$$python -m ruff format --check $(SOURCES)
	$$python -m mypy $(SOURCES)
	PYTHONPATH=agent:operator $$python -c 'from importlinter.cli import lint_imports_command as lint; lint()'

.PHONY: crds
crds: ## generate crds/ and the chart's copy from the pydantic models
	python=$(DEV)
	PYTHONPATH=agent:operator $$python -m flashboot_operator.crdgen
	$$python charts/sync_crds.py

.PHONY: generated
generated: crds ## generate, and fail when the result is not what is committed
	git diff --exit-code -- crds charts

.PHONY: native
native: ## build the C++ module into agent/flashboot_agent, for work on the checkout
	python=$(DEV)
	mkdir -p build
	$$python -m cmake -S csrc -B build/native -DPython_EXECUTABLE="$$python" > build/native.log 2>&1 || { cat build/native.log; exit 1; }
	$$python -m cmake --build build/native --parallel >> build/native.log 2>&1 || { cat build/native.log; exit 1; }
	for built in build/native/_native*.so build/native/_ahead*.so; do # not again while tests run that have loaded it
		there=agent/flashboot_agent/$$(basename "$$built")
		cmp -s "$$built" "$$there" || cp --remove-destination "$$built" "$$there"
	done

.PHONY: native-checks
native-checks: ## the C++ tests under sanitizers and for arm64, and the fuzz targets (ONLY=tsan or plain, FUZZ_SECONDS=20)
	sysroot=$$($(SETUP) path native-checks); python=$(DEV)
	PYTHONPATH=e2e $$python -m native_checks --sysroot "$$sysroot" --fuzz-seconds $(FUZZ_SECONDS) $(ONLY:%=--only %)

BENCH ?= all
.PHONY: bench
bench: native ## measure against limits and peers: BENCH=load|attach|clone|fanout|repair|isolation|plan|control|delta|all, QUICK=1, DOCS=1
	python=$(DEV)
	PYTHONPATH=.:agent:operator:e2e exec $$python -m bench $(BENCH) $(if $(QUICK),--quick) $(if $(DOCS),--docs)

.PHONY: images
images: ## build the rack's images from the sources as they are
	$(SETUP) ensure images

.PHONY: setup
setup: ## make all environments, programs and images now
	$(SETUP) ensure all

.PHONY: rack-up
rack-up: ## bring up the cluster: 4 nodes, on this machine
	$(RACK) up

.PHONY: rack-down
rack-down: ## remove every trace of the cluster
	$(RACK) down

.PHONY: rack-status
rack-status: ## what runs, and how much memory it takes
	$(RACK) status

.PHONY: clean
clean: ## remove what was built in this checkout (the cache stays)
	rm -rf build dist agent/flashboot_agent/_native*.so agent/flashboot_agent/_ahead*.so
