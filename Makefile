# Every target sets up .venv by itself, once, and again whenever pyproject.toml changes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.NOTPARALLEL:
.DEFAULT_GOAL := help
.PHONY: help train test lint format bench gpu peers

VENV := .venv
BIN := $(VENV)/bin
# A set-up that did not reach its end leaves this file behind; the next one then starts from an empty .venv.
UNFINISHED := $(VENV)/.unfinished
PYTHON ?=

define create_venv
	chosen=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
		if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			chosen="$$candidate"; break; \
		fi; \
	done; \
	if [ -z "$$chosen" ]; then \
		echo "No usable Python found. snnlearn needs Python 3.11 or newer with the modules venv and ensurepip" >&2; \
		echo "(on Debian and Ubuntu: apt-get install python3 python3-venv). If it is not on the PATH, name it:" >&2; \
		echo "    make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; \
		exit 1; \
	fi; \
	echo "Creating $(VENV) with $$("$$chosen" --version) ..."; \
	mkdir -p $(VENV); touch $(UNFINISHED); \
	"$$chosen" -m venv $(VENV)
endef

# $(1): what to install.  The stamp files are written only after pip has come to a good end.
define install
	if [ -e $(UNFINISHED) ]; then \
		echo "An earlier set-up of $(VENV) did not finish; starting over."; rm -rf $(VENV); \
	fi; \
	if ! $(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
		rm -rf $(VENV); $(create_venv); \
	fi; \
	echo "Installing $(1) into $(VENV) (the first time this takes some minutes: torch is large) ..."; \
	touch $(UNFINISHED); \
	if ! $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --config-settings editable_mode=compat --editable "$(1)"; then \
		echo "The installation failed; pip's message is above. The next make starts from an empty $(VENV)." >&2; \
		exit 1; \
	fi; \
	rm $(UNFINISHED)
endef

help: ## Show this list
	@echo "snnlearn: online learning of spiking networks. Targets:"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

train: $(VENV)/.package-ready ## Train on the embedded digits (a few minutes)
	$(BIN)/python scripts/train.py

test: $(VENV)/.dev-ready ## Run every test, doctests and notebooks included
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal

lint: $(VENV)/.dev-ready ## Check style, format and types; change nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev-ready ## Put every file into the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev-ready ## Measure step speed, silence and memory (results also in outputs/benchmarks)
	$(BIN)/python benchmarks/step_speed.py
	$(BIN)/python benchmarks/silence.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/chunk_speed.py

gpu: $(VENV)/.dev-ready ## Check and time everything on a GPU, in under 8 minutes (results also in outputs/benchmarks)
	$(BIN)/python benchmarks/gpu.py

PEERS := outputs/peers

peers: $(PEERS)/.ready ## Time SpikingJelly, snnTorch and braintrace, in an environment of their own
	mkdir -p outputs/benchmarks
	for peer in spikingjelly snntorch braintrace; do $(PEERS)/bin/python benchmarks/peers/$${peer}_peer.py; done > outputs/benchmarks/peers.jsonl
	@echo "results: outputs/benchmarks/peers.jsonl; benchmarks/chunk_speed.py --threads 1 --peers takes them in"

$(PEERS)/.ready: benchmarks/peers/requirements.txt $(VENV)/.dev-ready
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --disable-pip-version-check --no-input --requirement $<
	@touch $@

$(VENV)/.package-ready: pyproject.toml
	@$(call install,.)
	@touch $@

$(VENV)/.dev-ready: pyproject.toml
	@$(call install,.[dev])
	@touch $@ $(VENV)/.package-ready
