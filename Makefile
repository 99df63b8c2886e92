# Reef. `make` alone says what there is.
BIN := .venv/bin
CODE := libs services recipes
CONFIG ?= recipes/sao/examples/sao/serve.yaml
SEED ?= 1
N ?= 50
WITHIN ?= 900
export OMP_NUM_THREADS ?= 1
# Without the compiled files each process of a stack compiles a thousand modules again: 2 s of each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test lint types bench soak chaos up down clean

help: ## this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

setup: .venv/.current ## build .venv (does nothing when it is current)
.venv/.current: pyproject.toml requirements.lock
	./infra/setup.sh

demo: setup ## watch a model learn from its own traffic, on this machine (ARGS="--model tiny")
	$(BIN)/reef demo $(ARGS)

serve: setup ## start everything (CONFIG=path/to/serve.yaml)
	$(BIN)/reef serve -c $(CONFIG) $(ARGS)

test: setup ## every test, on the real broker, stores and engine
	$(BIN)/python -m pytest -q -n 5 --dist loadfile --max-worker-restart 0 --no-loadscope-reorder -o console_output_style=classic -m "not e2e" $(ARGS)
	$(BIN)/python -m pytest -q -n 3 --dist loadfile --max-worker-restart 0 -m e2e $(ARGS)

lint: setup ## style, import contracts, dead code
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && PYTHONPATH=libs:. $(BIN)/lint-imports && $(BIN)/vulture $(CODE) --min-confidence 80

types: setup ## mypy, strict
	$(BIN)/mypy

bench: setup ## how fast Reef is here, beside what it is measured against (ARGS="gateway --json out.json")
	$(BIN)/python -m tests.bench $(ARGS)

soak: setup ## MINUTES=60 of light load on the whole stack: does anything grow? (RATE=3, ARGS="--out soak.json")
	$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),60) --rate $(or $(RATE),3) $(ARGS)

chaos: setup ## kills and outages under load, and what held (SEED=1 N=50 ARGS="--scenario broker-away-60")
	$(BIN)/python -m tests.chaos --seed $(SEED) --faults $(N) $(ARGS)

up: ## the production shape, in containers
	./infra/secrets.sh && SERVE_YAML_SUM=$$(. ./.env && sha256sum "$$SERVE_YAML" | cut -c1-16) \
		docker compose up --build --detach --wait --wait-timeout $(WITHIN)

down: ## stop the containers; their volumes are kept
	docker compose down

clean: ## remove what can be built again; the state directory (.reef) is kept
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
