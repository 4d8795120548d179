# What a person types. `make demo` and `make test` need nothing but Python 3.10+ and a network for pip.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
CODE   := lab tests bench scripts examples
# A torch without CUDA is enough here and much smaller; name another one (or an index) to use it.
TORCH  ?= torch==2.13.0
PIP    := $(BIN)/pip --disable-pip-version-check --quiet
# Python compiles what is imported; compiling all of torch and its company beforehand doubles an install.
INSTALL := $(PIP) install --no-compile

.PHONY: demo test test-long lint shape mutate format site docs bench bench-semicrf schema clean images locks compose compose-up bake dockerfiles pin audit

demo: $(VENV)/.demo  ## a real 2-rank sweep on this CPU, analysed; prints the path of its report
	$(BIN)/lab run --quiet --gpus none sweep -c 28,42 -t 256 --ranks 2
	@echo
	@echo "Next: open the report above in a browser, then"
	@echo "  $(BIN)/lab analyze examples/read_trace/step.json.gz -o page   # a recorded training step of an H200"
	@echo "  $(BIN)/lab doctor                                             # what this machine offers"
	@echo "  examples/README.md                                         # ten examples of a minute each"

test: $(VENV)/.test  ## all tests this machine can run; what is skipped says why
	$(BIN)/python -m pytest $(PYTEST)

test-long: $(VENV)/.test  ## the tests that search for minutes, too
	LAB_TEST_LONG=1 $(BIN)/python -m pytest $(PYTEST)

lint: $(VENV)/.test  ## ruff, mypy, the layers (import-linter), names and sizes, Dockerfiles and locks, workflows (zizmor)
	$(BIN)/python scripts/names.py
	$(BIN)/python scripts/shape.py --check
	$(BIN)/python scripts/dockerfiles.py --check
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/zizmor --offline --quiet --config .github/zizmor.yml .github/workflows

shape: $(VENV)/bin/python  ## the tree in numbers: bytes and budgets, files, functions, comments, circles
	$(BIN)/python scripts/shape.py

mutate: $(VENV)/.test  ## change the code under verdicts, one place at a time; ONLY="lab.stats.*" for a part
	$(BIN)/python scripts/mutate.py $(ONLY)

format: $(VENV)/.test
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(VENV)/.test  ## speed and memory beside the peer in one run; writes docs/speed.md (hours)
	$(BIN)/python -m bench

bench-semicrf: $(VENV)/.test  ## the semi-CRF beside flash-semicrf on this GPU or CPU; LAB_BENCH_FLASH_SEMICRF names its folder
	$(BIN)/python -m bench.semicrf

site: $(VENV)/.test  ## build the site of the docs into site/, every link checked
	$(BIN)/python scripts/commands.py > docs/commands.md
	$(BIN)/mkdocs build --quiet

docs: site  ## the same, and serve it on this machine
	$(BIN)/mkdocs serve

schema: $(VENV)/.demo  ## write docs/manifest.schema.json anew
	$(BIN)/python scripts/schema.py > docs/manifest.schema.json

# The bases that cannot be pulled here are made of Debian packages; IMAGES="cpu pascal" builds only those.
images: $(VENV)/.demo  ## lab/cpu, lab/cpu-torch, lab/pascal and lab/cuda, on their bases or on stand-ins
	LAB=$(BIN)/lab scripts/images-here.sh $(IMAGES)

locks: $(VENV)/.test  ## write images/*/*.lock anew; LAB_UPGRADE=1 moves to the newest versions
	PATH="$(CURDIR)/$(BIN):$$PATH" scripts/locks.sh
	$(MAKE) pin || echo "the bases' digests stay as they are: see above" >&2

bake: $(VENV)/.demo  ## write docker-bake.json anew from images/
	$(BIN)/python scripts/images.py bake

dockerfiles: $(VENV)/.demo  ## write the shared sections of docker/*.Dockerfile anew
	$(BIN)/python scripts/dockerfiles.py

pin: $(VENV)/.demo  ## write the digests of the bases into images/*/image.toml, and what is made from them
	$(BIN)/python scripts/images.py pin
	$(MAKE) bake

audit: $(VENV)/.test  ## known vulnerabilities of what the locks name
	$(PIP) install pip-audit
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/audit.py

compose: $(VENV)/.demo  ## write compose/compose.yaml anew from images/
	$(BIN)/python scripts/compose.py

PROFILE ?= cpu
COMPOSE ?= $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
compose-up: $(VENV)/.demo  ## a small sweep and its analysis in containers; PROFILE=cuda, pascal or rocm70 where the GPUs are
	mkdir -p experiments/.cache/hf experiments/.cache/lab
	gpu=$$($(BIN)/python scripts/images.py gpu-env $(PROFILE)) \
	&& run="env UID=$$(id -u) GID=$$(id -g) LAB_PROFILE=$(PROFILE) $$gpu $(COMPOSE) -p lab -f compose/compose.yaml run --rm" \
	&& $$run $(PROFILE) && $$run analysis

# The names that the original sweep's users type; SWEEP names the folder.
.PHONY: sweep analyze-sweep merge-traces
sweep: $(VENV)/.demo  ## the sweep, here and now; ARGS="-c 28,42 -t 256 -f config.yaml"
	LAB=$(BIN)/lab scripts/run_train_various_channels.sh $(ARGS)

analyze-sweep: $(VENV)/.demo  ## all reports of a sweep into SWEEP/tracelens_analysis
	LAB=$(BIN)/lab scripts/run_tracelens_analysis.sh $(SWEEP) $(ARGS)

merge-traces: $(VENV)/.demo  ## all ranks of each configuration on one timeline, into SWEEP/merged_traces
	LAB=$(BIN)/lab scripts/merge_all_traces.sh $(SWEEP) $(ARGS)

# The names that users of the published nsys scripts type; ARGS adds flags (--image is LAB_RUN="--image cuda").
.PHONY: nsys-part-a nsys-part-b nsys-part-c nsys-part-d nsys-part-e nsys-all nsys-answers nsys-stats
nsys-part-a nsys-part-b nsys-part-c nsys-part-d nsys-part-e: nsys-part-%: $(VENV)/.demo  ## one question, all sizes
	$(BIN)/lab run $(LAB_RUN) nsys --part $* $(ARGS)

nsys-all: $(VENV)/.demo  ## five sizes x four contexts x three profile types
	$(BIN)/lab run $(LAB_RUN) nsys --part all $(ARGS)

nsys-answers: $(VENV)/.demo  ## the answers of RUN, with their checks
	LAB=$(BIN)/lab scripts/extract_all_analyses.sh $(RUN) $(ARGS)

nsys-stats: $(VENV)/.demo  ## nsys' own reports of every capture below RUN
	LAB=$(BIN)/lab scripts/export_stats_reports.sh $(RUN)

# The names that users of the published NaN experiments type; RUN is a run's folder or the published one.
.PHONY: priority analyze nixnan-priority analyze-sass
priority: $(VENV)/.demo  ## the four key experiments, every module watched; ARGS="--model BioMistral/BioMistral-7B"
	$(BIN)/lab run $(LAB_RUN) nan priority $(ARGS)

nixnan-priority: $(VENV)/.demo  ## the same under nixnan.so, named in NIXNAN_SO; LAB_RUN="--image cuda"
	$(BIN)/lab run $(LAB_RUN) nixnan priority $(ARGS)

analyze: $(VENV)/.demo  ## ranking, births and page of RUN
	$(BIN)/lab nan analyze $(RUN) $(ARGS)

analyze-sass: $(VENV)/.demo  ## the same; RUN must hold nixnan's logs
	$(BIN)/lab nan analyze --sass $(RUN) $(ARGS)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache build dist

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) $(TORCH)
	$(INSTALL) -e '.[host,analysis,workload]'
	touch $@

$(VENV)/.test: pyproject.toml | $(VENV)/.demo
	$(INSTALL) -e '.[host,analysis,workload,serve,query,mcp,test,dev]'
	touch $@
