# make serve    environment, installation, and the server on the demo model     MODEL=path ARGS="--port 8001"
# make test     environment, installation with test tools, and the test suite   ARGS="tests/server -x" runs a part, WORKERS=2 uses two cores
# make interpreted   the kernels under Triton's interpreter, a part of the suite that needs a process of its own
# make lint     style, types, import rules, generated docs
# make gpu      what needs a CUDA device; WORKERS=12 where there are cores for it, since compilers take the time
# make long     soak tests and benchmarks, minutes each
# make settings rewrites docs/settings.md from config.py
# PYTHON=python3.12 and VENV=elsewhere work with every target.
VENV ?= .venv
PYTHON ?=
MODEL ?=
ARGS ?=
WORKERS ?=

BIN := $(VENV)/bin
INSTALL := VENV="$(VENV)" PYTHON="$(PYTHON)" tools/install.sh
PARALLEL := $(if $(WORKERS),-n $(WORKERS) --dist worksteal)
INSTALLED_FROM := pyproject.toml tools/install.sh $(wildcard constraints/*.txt)

.PHONY: serve test interpreted lint gpu long settings

serve: $(VENV)/.serve-installed
	@exec $(BIN)/headrace serve $(if $(MODEL),"$(MODEL)") $(ARGS)

test: $(VENV)/.dev-installed
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)
	$(if $(ARGS),,TRITON_INTERPRET=1 $(BIN)/python -m pytest $(PARALLEL) -m interpreted tests/kernels)

interpreted: $(VENV)/.dev-installed
	TRITON_INTERPRET=1 $(BIN)/python -m pytest $(PARALLEL) -m interpreted $(or $(ARGS),tests/kernels)

gpu: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -m "gpu and not alone" $(if $(WORKERS),-n $(WORKERS)) $(ARGS)
	$(if $(ARGS),,$(BIN)/python -m pytest -v -s -m "gpu and alone")

long: $(VENV)/.dev-installed
	$(BIN)/python -m pytest -m long --timeout 3600 $(ARGS)

lint: $(VENV)/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m headrace.commands.settings_table --check docs/settings.md

settings: $(VENV)/.serve-installed
	$(BIN)/python -m headrace.commands.settings_table docs/settings.md

$(VENV)/.serve-installed: $(INSTALLED_FROM)
	@$(INSTALL)
	@touch $@

$(VENV)/.dev-installed: $(INSTALLED_FROM)
	@$(INSTALL) dev
	@touch $@ $(VENV)/.serve-installed
