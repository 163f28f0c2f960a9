# Two commands are enough: `make demo` shows what efprof does, `make test` checks it. Both make .venv first.

VENV ?= .venv
BIN := $(VENV)/bin
# The first Python that is new enough; a shim that only says "not found" is passed over.
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
INSTALLED := $(VENV)/installed
TESTS_INSTALLED := $(VENV)/installed-tests
DOCS_INSTALLED := $(VENV)/installed-docs
GPU_PYTHON ?= $(BIN)/python

.DEFAULT_GOAL := help
.PHONY: help install demo docs test format check types tests repeat casebook bench-overhead bench-compare bench-memory bench-report bench-trace bench-trainer programs hta conformance stability versions gpu gpu-minutes plotly fixtures clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(TESTS_INSTALLED) ## Make .venv and install both packages into it, with what the tests need

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "efprof needs Python 3.11 or newer: install it, or name it as in 'make PYTHON=/path/to/python3.12 demo'."; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(TESTS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

demo: $(INSTALLED) ## Record energy_flow healthy and with its old faults, and write reports/demo/*.html
	$(BIN)/python demo.py

docs: $(DOCS_INSTALLED) ## Build the site of the documentation into docs/_build; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going --quiet docs docs/_build
	@echo "Written: docs/_build/index.html"

# Tests wait for processes a fifth of their time: the type checker, a minute without its cache, fits in there.
test: check ## Check the format, lint, type-check and run the tests
	@$(MAKE) --no-print-directory -j 2 types tests

check: $(TESTS_INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(TESTS_INSTALLED)
	$(BIN)/mypy

# Most of a test is a process that starts: two at once take little more than half the time. Where one of them crashes,
# all end: pytest-xdist gives the one that takes its place nothing to do (its issue 784), and would wait for ever.
# Files come in the order of tests/conftest.py, the longest first; pytest-xdist's own puts those with the fewest tests last.
tests: $(TESTS_INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0 -m 'not long'

format: $(TESTS_INSTALLED) ## Format the code and mend what the linter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# make repeat TESTS="tests/recorder/windows 'tests/test_units.py::test_name[a, b]'" ROUNDS=50; or one test per line. The
# module reads TESTS from the environment, where blanks and lines are kept. A run that was stopped goes on where it was.
ROUNDS ?= 50
RESULTS ?= .efprof-repeat/results.jsonl
export TESTS
repeat: $(TESTS_INSTALLED) ## Run TESTS for ROUNDS rounds, every second one beside three busy loops, and count failures
	@$(BIN)/python -m tests.support.repeat $(RESULTS) $(ROUNDS)

casebook: $(TESTS_INSTALLED) ## Record every planted fault and its healthy twin, and score the audits and their gains
	$(BIN)/python -m tests.casebook --gains

bench-overhead: $(TESTS_INSTALLED) ## Measure what recording costs, bare and recorded by turns
	$(BIN)/python -m benchmarks.overhead

bench-compare: $(TESTS_INSTALLED) ## Time pairs of processes by turns: how often a verdict on time is wrong
	$(BIN)/python -m benchmarks.comparing.bench

bench-memory: $(TESTS_INSTALLED) ## Replay recorded GPU memory, and time a million events beside torch's viewer
	$(BIN)/python -m benchmarks.memory
	$(BIN)/python -m benchmarks.memory.cards --write reports/memory.md

bench-report: $(TESTS_INSTALLED) ## Measure what a report costs, and where its time goes
	$(BIN)/python -m benchmarks.report --write reports/report.md

# HTA and TraceLens, of which neither may be installed beside efprof, are measured where their Python is named:
# make bench-trace HTA=/path/to/python TRACELENS=/path/to/python
bench-trace: $(TESTS_INSTALLED) ## Reports of others' files beside an oracle; what reading a trace costs, beside other tools
	$(BIN)/python -m benchmarks.tracing.foreign --write reports/traces.md
	$(BIN)/python -m benchmarks.trace --write reports/trace.md $(if $(HTA),--hta $(HTA)) $(if $(TRACELENS),--tracelens $(TRACELENS))

bench-trainer: $(TESTS_INSTALLED) ## Time energy_flow's step against a loop over flows and texts with the same weights
	$(BIN)/python -m benchmarks.trainer --write reports/trainer.md

# The programs' packages lie in an environment of their own, on top of the one above. PyPI has torchvision for CUDA alone:
# its operators do not load beside torch for a CPU. None of the programs calls one, so their registration is emptied.
PROGRAMS := $(VENV)/programs
PROGRAMS_INSTALLED := $(VENV)/installed-programs
PACKAGES := lib/$$($(BIN)/python -c 'import sys; print("python%d.%d" % sys.version_info[:2])')/site-packages
$(PROGRAMS_INSTALLED): $(TESTS_INSTALLED)
	$(BIN)/python -m venv $(PROGRAMS)
	echo "import site; site.addsitedir('$(abspath $(VENV))/$(PACKAGES)')" >$(PROGRAMS)/$(PACKAGES)/below.pth
	$(PROGRAMS)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		gymnasium 'jsonargparse[signatures]' scikit-learn scipy tensorboard tyro
	$(PROGRAMS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'torchvision>=0.28,<0.29'
	: >$(PROGRAMS)/$(PACKAGES)/torchvision/_meta_registrations.py
	@touch $@

programs: $(PROGRAMS_INSTALLED) ## Record public training programs in FOLDER beside bare ones (make programs FOLDER=/path/to/checkouts)
	$(PROGRAMS)/bin/python -m benchmarks.public_programs $(if $(FOLDER),'$(FOLDER)',--list) $(if $(ONLY),--only '$(ONLY)',--write reports/programs.md)

# What its tests need of the rest of HTA's packages is there: alone, without its notebooks, it is 77 MB instead of 490.
hta: $(TESTS_INSTALLED) ## Check what a device does in other people's traces against HolisticTraceAnalysis
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(VENV)/hta \
		'traceinsight>=0.6.1,<0.7' 'plotly>=5.11' narwhals
	PYTHONPATH=$(VENV)/hta $(BIN)/python -m pytest -rs -s tests/facts/overview/test_hta.py

# Under the Python that is named, which has all packages, or that of .venv.
IS_NAMED := $(if $(filter file,$(origin PYTHON)),,yes)
conformance: $(if $(IS_NAMED),,$(TESTS_INSTALLED)) ## Check that torch is as always under the recorder, under .venv or another Python (make conformance PYTHON=python3.13)
	$(if $(IS_NAMED),$(PYTHON),$(BIN)/python) -m pytest -m "not long" tests/recorder/hooks/test_conformance.py

stability: $(TESTS_INSTALLED) ## Run the long tests, train energy_flow in four phases on every device, and check that nothing grows, slows or breaks
	$(BIN)/python -m pytest -m long
	$(BIN)/python -m benchmarks.stability --write reports/stability.md

# Each version takes 6 GB in TMPDIR and some ten minutes: make versions VERSIONS="2.9 /path/to/python" PYTHON=python3.12
VERSIONS ?= oldest 2.9 2.11 newest
versions: $(TESTS_INSTALLED) ## Run the tests that depend on torch under several versions of it, and write reports/versions.md
	$(BIN)/python -m tests.support.versions reports/versions.md $(if $(IS_NAMED),$(PYTHON),$(BIN)/python) $(VERSIONS)

# Both need no installation of efprof: programs that tests start find it by PYTHONPATH.
gpu: export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu: ## Run everything that needs a CUDA device, under .venv or another Python (make gpu GPU_PYTHON=python3)
	$(GPU_PYTHON) -m pytest -m gpu -rs -W default

gpu-minutes: ## Run what fits of it in ten minutes, and pack the results in reports/gpu (make gpu-minutes GPU_PYTHON=python3)
	EFPROF_COMMIT="$${EFPROF_COMMIT:-$$(git describe --always --dirty 2>/dev/null)}" $(GPU_PYTHON) -m benchmarks.recording.on_a_gpu.minutes

PLOTLY ?= 4.1.1
PLOTLY_FOLDER := $(CURDIR)/efprof/report/page/plotly
plotly: ## Fetch plotly's bundle for the pages anew, from npm (make plotly PLOTLY=4.1.1)
	cd "$$(mktemp -d)" && npm pack --silent plotly.js-cartesian-dist-min@$(PLOTLY) >/dev/null && tar xzf *.tgz && \
		gzip -9 -n -c package/plotly-cartesian.min.js >$(PLOTLY_FOLDER)/plotly-cartesian.min.js.gz && \
		cp package/LICENSE $(PLOTLY_FOLDER)/LICENSE

fixtures: $(TESTS_INSTALLED) ## Record the small runs in tests/runs/ anew
	$(BIN)/python -m tests.support.record_fixtures

clean: ## Remove what the other commands made
	rm -rf $(VENV) .efprof .efprof-casebook .efprof-repeat reports/demo data/energy_flow docs/_build docs/audits docs/measured
