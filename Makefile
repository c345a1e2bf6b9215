# Everything that a person types. `make` alone lists it. What takes long to make is kept in ~/.cache/tinker-atropos.

PYTHON ?= python3
VENV   := .venv
TIERS  ?=
PYTEST ?=

.DEFAULT_GOAL := help
.PHONY: clean-cache help demo demo-down demo-local test lint format generate lock venv cluster-binaries images cluster-up cluster-down clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 26

demo: ## Real cluster, operator and examples/quickstart.yaml to Complete (root Linux; about 12 min the first time, 4 later)
	@$(PYTHON) scripts/demo.py up

demo-down: ## Remove the demonstration's cluster and all in it
	@$(PYTHON) scripts/demo.py down

demo-local: $(VENV)/.installed ## The same run file as processes on this machine: no root, no cluster, two minutes
	@$(VENV)/bin/tinker-atropos run examples/quickstart.yaml

test: $(VENV)/.installed ## All test tiers that this machine can carry (TIERS="unit wire", PYTEST="-k name" narrow it)
	@$(VENV)/bin/python scripts/run_tests.py $(TIERS) $(if $(PYTEST),--pytest='$(PYTEST)')

lint: $(VENV)/.installed ## ruff, mypy --strict, import contracts
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: $(VENV)/.installed ## Format all code
	$(VENV)/bin/ruff format
	$(VENV)/bin/ruff check --fix-only --quiet

generate: $(VENV)/.installed ## Write generated files again (protocol code, the chart's CRD)
	$(VENV)/bin/python scripts/generate_protocol.py
	$(VENV)/bin/python scripts/generate_chart_crd.py
	$(VENV)/bin/python scripts/generate_crd_reference.py
	$(VENV)/bin/python scripts/generate_pod_fields.py

lock: $(VENV)/.installed ## Pin dependencies again: constraints.txt and images/*/requirements.txt
	$(VENV)/bin/python scripts/lock.py

venv: $(VENV)/.installed ## The development environment in .venv

$(VENV)/.installed: pyproject.toml constraints.txt scripts/make_venv.py
	@$(PYTHON) scripts/make_venv.py

cluster-binaries: ## Build Kubernetes, etcd, CoreDNS, kubectl and helm from source (once; 7 min)
	@$(PYTHON) devcluster/devcluster.py build

images: ## Build the project's images
	@$(PYTHON) scripts/images.py build

cluster-up: ## An empty built-in cluster named demo
	@$(PYTHON) devcluster/devcluster.py up

cluster-down: demo-down ## The same as demo-down

clean-cache: ## Remove what is kept outside the clone: built programs, waiting images (with none of its clusters up)
	@$(PYTHON) devcluster/devcluster.py purge

clean: ## Remove what was built inside the clone (the cache outside is kept)
	rm -rf $(VENV) dist build *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
