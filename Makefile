# Two commands do everything in an empty clone: `make demo` and `make test`.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
EXTRAS := tvm,network,openvino,opencl,wandb,tensorboard,gbdt,objectives,sweep,docs,dev
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo test fast lint docs book ansor-env pools shapes slow gpu gpu-sim attack clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: $(STAMP) ## make .venv and install the project with every extra, at exact versions

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; say which: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $@

PRESET := full
DEMO := demo-$(shell date +%Y%m%d-%H%M%S)
BUNDLED := data.platform=all split=bundled
SEEDS := seeds=[0,1,2] num_workers=2 trainer.accelerator=cpu

demo: setup ## train two models on the bundled CPU measurements, judge them on unseen workloads
	$(BIN)/python train.py $(BUNDLED) $(SEEDS) model=pacm_residual run_id=$(DEMO)-pacm
	$(BIN)/python train.py $(BUNDLED) $(SEEDS) model=xgboost run_id=$(DEMO)-xgboost

# Tests run beside each other, single ones to whoever is idle; seconds of each land in .cache/.
PYTEST = $(BIN)/python -m pytest -n 2 --dist worksteal --durations=50 --junitxml=.cache/junit-$@.xml

test: setup ## everything a change must pass: ruff, mypy, the fast tests
	$(MAKE) --no-print-directory -j2 lint fast

fast: setup ## the fast tests alone
	$(PYTEST) -m "not slow"

lint: setup ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: setup ## build the documentation site into site/; every warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "open site/index.html" >&2

book: setup ## remake tables and figures of experiments/ (DATA=folder of GPU records; an hour on two cores; PRESET=small, or alone: hours, on an idle machine)
	@test -n "$(DATA)" || { echo "say where the GPU records are: make book DATA=DIR ($(BIN)/pruner get gpu-logs out=DIR fetches them)" >&2; exit 1; }
	$(BIN)/pruner book data.root=$(DATA) preset=$(PRESET) num_workers=$(if $(filter alone gpu,$(PRESET)),1,2)

ansor-env: setup ## install Ansor beside the project, to measure schedules of your own CPU
	$(BIN)/pruner collect setup=true

POOLS := outputs/pools

pools: setup ## measure the pool set of this CPU's targets (hours, nothing else may run; goes on where it was; POOLS=folder)
	$(BIN)/pruner collect workloads=small programs=192 measure.repeats=3 measure.min_repeat_ms=20 out=$(POOLS)

shapes: setup ## the tests of the densest arrays with every shape in an annotation checked
	$(PYTEST) -m "not slow" --check-shapes tests/test_shapes.py tests/program tests/features tests/models tests/search

slow: setup ## the slow tests, without those of a GPU and of make attack
	$(PYTEST) -m "slow and not gpu" --ignore=tests/attack

GPU := 0

gpu: setup ## the tests that need a CUDA device (GPU=number, or GPU=0,1 for those of two)
	CUDA_VISIBLE_DEVICES=$(GPU) $(BIN)/python -m pytest -m gpu tests/gpu

gpu-sim: setup ## the same tests on a CUDA device that this CPU simulates (nothing here says how fast a GPU is)
	$(BIN)/python -m tests.cudasim.simulator check=true order=random $(BIN)/python -m pytest -m gpu tests/gpu

KILLS := 12
LINES := 50000
FAULTS := 0

attack: setup ## damaged records, hostile files and devices, wrong options, faults, kills (KILLS=200): what was tried, held and failed; goes on where it was (ONLY=kills: a part, SECONDS=3000: begin no more then, TABLE=file)
	ATTACK_KILLS=$(KILLS) ATTACK_LINES=$(LINES) ATTACK_FAULTS=$(FAULTS) ATTACK_ONLY="$(ONLY)" ATTACK_SECONDS=$(SECONDS) ATTACK_TABLE=$(TABLE) ATTACK_RUN=$(RUN) $(BIN)/python -m tests.attack.report

clean: ## remove caches; the environment and the runs stay
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache *.egg-info
