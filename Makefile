# Two commands on a fresh machine do everything: `make demo` and `make test`.

PYTHON ?= python3
VENV := .venv
VENV_0_5_9 := .venv-sglang-0.5.9
VENV_0_5_20 := .venv-sglang-0.5.20
PIP := $(VENV)/bin/pip --disable-pip-version-check --quiet
RUN := $(VENV)/bin/python -m
PYTEST ?= $(RUN) pytest
# One process for each core, a file's tests in one of them: fixtures that start a server are a module's. Files are taken
# as tests/conftest.py orders them.
SIDE_BY_SIDE ?= -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

SOAK_MINUTES ?= 30

.PHONY: help setup setup-0.5.9 setup-0.5.20 browser demo test test-fast lint matrix mutations releases fuzz soak bench docs \
    clean

help:
	@echo 'make demo         set up, serve a draft with a fault, name the cause; then the same healthy'
	@echo 'make test         lint, types, layering and all tests (starts real servers on the CPU)'
	@echo 'make test-fast    without the tests that start servers'
	@echo 'make matrix       the whole catalogue of faults; writes docs/matrix.md'
	@echo 'make mutations    changes every comparison of every check, one at a time: what no test sees fails it (hours)'
	@echo 'make soak         200 kills of a writer, every death of a real server, 30 minutes of load (an hour in all)'
	@echo 'make docs         the generated tables of README.md and docs/'
	@echo 'make releases     reads every release of SGLang in the registry; writes docs/sglang-releases.md'
	@echo 'make setup        everything into .venv; make setup-0.5.9, setup-0.5.20: other engines into .venv-sglang-*'

setup: $(VENV)/.ready
setup-0.5.9: $(VENV_0_5_9)/.ready
setup-0.5.20: $(VENV_0_5_20)/.ready

$(VENV)/.ready: pyproject.toml requirements/sglang-0.5.23.txt requirements/beside.txt
	@echo '[1/4] a virtual environment in $(VENV)'
	@test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	@echo '[2/4] torch (a few GB: a minute or more)'
	@$(PIP) install torch==2.14.1 torchvision==0.29.1
	@echo '[3/4] sglang 0.5.23 and what it needs on a CPU'
	@$(PIP) install -r requirements/sglang-0.5.23.txt
	@$(PIP) install --no-deps sglang==0.5.23
	@$(PIP) install --no-deps -r requirements/beside.txt
	@echo '[4/4] eagletrace itself'
	@$(PIP) install -e '.[lab,dev]'
	@touch $@

# The second engine takes torch from the first environment's site-packages, which come last on its path.
$(VENV_0_5_9)/.ready: $(VENV)/.ready requirements/sglang-0.5.9.txt
	@echo 'sglang 0.5.9 into $(VENV_0_5_9)'
	@test -x $(VENV_0_5_9)/bin/python || $(PYTHON) -m venv $(VENV_0_5_9)
	@$(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    > $$($(VENV_0_5_9)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_first_environment.pth
	@$(VENV_0_5_9)/bin/pip --disable-pip-version-check --quiet install --no-deps -r requirements/sglang-0.5.9.txt
	@$(VENV_0_5_9)/bin/pip --disable-pip-version-check --quiet install --no-deps sglang==0.5.9
	@$(VENV_0_5_9)/bin/pip --disable-pip-version-check --quiet install --no-deps -e .
	@touch $@

# The third differs from the first in SGLang alone, and takes everything else from there, pip too.
$(VENV_0_5_20)/.ready: $(VENV)/.ready
	@echo 'sglang 0.5.20 into $(VENV_0_5_20)'
	@test -x $(VENV_0_5_20)/bin/python || $(PYTHON) -m venv --without-pip $(VENV_0_5_20)
	@$(VENV)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	    > $$($(VENV_0_5_20)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/zz_first_environment.pth
	@$(PIP) --python $(VENV_0_5_20)/bin/python install --no-deps --no-compile sglang==0.5.20
	@$(PIP) --python $(VENV_0_5_20)/bin/python install --no-deps -e .
	@touch $@

# What the tests of the report open it with; a Debian package, since playwright's own is a download.
browser:
	@{ command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || { \
	    echo 'Chromium, for the tests of the report'; \
	    timeout 120 apt-get update -qq && timeout 300 apt-get install -yqq --no-install-recommends chromium >/dev/null; } \
	    || echo 'no Chromium: install one, or the tests of the report in a browser are skipped'

demo: setup
	@$(RUN) eagletrace.lab.demo

lint: setup
	$(RUN) ruff check .
	$(RUN) pyright
	$(VENV)/bin/lint-imports

test: setup
	@$(MAKE) --no-print-directory --jobs 3 setup-0.5.9 setup-0.5.20 browser lint
	$(PYTEST) $(SIDE_BY_SIDE)

test-fast: setup browser lint
	$(PYTEST) $(SIDE_BY_SIDE) -m 'not lab'

releases: setup
	$(RUN) docs.releases

matrix: setup setup-0.5.9 setup-0.5.20
	$(VENV)/bin/eagletrace lab matrix --rounds 20 100 1000 --jobs 2 --markdown docs/matrix.md

mutations: setup
	$(VENV)/bin/python tests/diagnose/mutations.py

fuzz: setup
	$(VENV)/bin/python tests/fuzz/fuzz_run.py -max_total_time=300 -rss_limit_mb=4096 -max_len=5000 -len_control=0

soak: setup
	$(RUN) benchmarks.soak_kills
	EAGLETRACE_SOAK=1 $(PYTEST) tests/lab/test_server_deaths.py tests/lab/test_server_faults.py \
	    tests/lab/test_faults_on_the_engine.py tests/lab/test_lab_tensors.py tests/lab/test_multi_layer.py
	$(RUN) benchmarks.soak_server --minutes $(SOAK_MINUTES)

# What the peers need lies apart from the servers' environment.
.bench-packages/.ready: benchmarks/requirements.txt $(VENV)/.ready
	@$(PIP) install --target .bench-packages --no-deps --upgrade -r benchmarks/requirements.txt \
	    opentelemetry-exporter-otlp-proto-common opentelemetry-proto googleapis-common-protos grpcio protobuf objprint
	@touch $@

bench: setup .bench-packages/.ready
	$(RUN) benchmarks.recording
	$(RUN) benchmarks.background
	$(RUN) benchmarks.peers
	$(RUN) benchmarks.instructions
	$(RUN) benchmarks.diagnose_speed
	$(RUN) benchmarks.check_speed
	$(RUN) benchmarks.replay_speed
	$(RUN) benchmarks.page  # docs/benchmarks.md

docs: setup
	$(RUN) docs.generate

clean:
	rm -rf $(VENV) $(VENV_0_5_9) $(VENV_0_5_20) build dist eagletrace-runs lab-runs
