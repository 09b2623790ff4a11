# Every target prepares .venv by itself; all it needs is Python 3.11 or later and pip.

PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3; do \
	$$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$candidate && break; done)
# More than there are processors, as is usual for those who wait for disks and for each other.
WORKERS ?= 4
# Where nothing is kept of what Python has compiled, each of the thousand processes that tests start compiles perdure anew.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
RUNTIME := $(VENV)/.runtime
DEV := $(VENV)/.dev
PYTEST = $(BIN)/pytest -q
# What most tests wait for is the disk: where memory has room for their files (8 GiB), that is where they are.
ROOMY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 8388608 { print "/dev/shm" }')
QUICKLY = $(if $(ROOMY),TMPDIR=$(ROOMY) )$(PYTEST) -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: demo check test soak bench clean help static

demo: $(RUNTIME) ## Run the demonstration; installs only what a user needs
	$(BIN)/perdure demo

check: static ## The inner loop: format, lint, strict types, layers, fast tests
	$(QUICKLY) --hypothesis-profile quick -m "not slow and not soak"

test: static ## What CI runs: the checks, and every test but the soak tests
	$(QUICKLY) -m "not soak"

soak: $(DEV) ## The tests that take long: random histories, repeated kills
	$(PYTEST) -m soak

bench: $(DEV) ## Measure
	$(BIN)/python -m bench

clean: ## Remove everything that make and the tools have made
	rm -rf $(VENV) .cache .hypothesis dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## This list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

static: $(DEV)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/mypy

# A Python without ensurepip (as Debian packages it) gets its pip from the pip that is there.
$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or later was found. Name one: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) \
		|| { $(PYTHON) -m venv --clear --without-pip $(VENV) && $(PYTHON) -m pip --python $@ install -q pip; } \
		|| { rm -rf $(VENV); exit 1; }

# uv is much faster; where it cannot be had or does not reach the index that pip is set up for, pip does the same.
define install
	@echo "Installing $(2) into $(VENV) …"
	@{ $(BIN)/python -m pip install -q uv && $(BIN)/uv pip install -q --python $(BIN)/python $(1); } \
		|| { $(BIN)/python -m pip install -q 'pip>=25.1' && $(BIN)/python -m pip install -q $(1); }
	@touch $@
endef

$(RUNTIME): pyproject.toml | $(BIN)/python
	$(call install,-e .,perdure)

$(DEV): pyproject.toml | $(BIN)/python
	$(call install,-e '.[all]' --group dev,perdure and the tools of its developers)
	@touch $(RUNTIME)
