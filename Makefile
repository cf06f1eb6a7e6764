# Two commands on a fresh machine: make verify, make test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REPORT ?= hpcverify-report.html
# Without bytecode each process of a test compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help verify test test-system fabric test-all test-packages test-ansible test-container system-tools \
	lint format bench docs schema faults states reference tutorial examples picture pages sdc-table \
	packages wheelhouse release lock clean

help:
	@echo "make verify   verify this machine, and say where the report is"
	@echo "make test     lint, and test what needs Python, gcc and fio; as any user; 5 minutes"
	@echo "make test-system  test with a real Slurm, networks, Chromium, Prometheus (as root; 18 minutes)"
	@echo "make test-all test on Debian 13 too, with its Slurm (as root; 1 GB)"
	@echo "make test-packages  install, upgrade and remove them on new Debians (as root; half an hour)"
	@echo "make test-ansible  run the Ansible role on new Debians (as root; 1 GB)"
	@echo "make test-container  build the images and verify a node in each (as root; 4 GB)"
	@echo "make fabric   name what spoils collectives on a network with faults; on a quiet machine"
	@echo "make lint     ruff, mypy --strict, and the words of pages and messages"
	@echo "make packages deb and rpm of a node and of a controller, in dist/"
	@echo "make wheelhouse  torch for nodes without a package index, in dist/"
	@echo "make release  packages, wheel, list of contents and checksums, from a clean checkout"
	@echo "make docs     render the book in docs/ as a site with search, to read without a network"
	@echo "make bench    what it costs, as ratios (docs/internals/benchmarks.md)"

# The verdict is in the report; only FAIL (1) and a mistake of ours or yours (2) end
# in an error: 3 says that not all could be judged.
verify:
	@PATH="$$PATH:/usr/sbin:/sbin" ./.ci/need --venv $(PYTHON) --optional fio:fio smartctl:smartmontools
	@$(MAKE) --no-print-directory $(BIN)/hpcverify
	@echo "to run the commands that are printed here: . $(BIN)/activate"
	@rm -f $(REPORT); status=0; \
	$(BIN)/hpcverify run -o $(REPORT) || status=$$?; \
	[ -f $(REPORT) ] || exit $$status; \
	echo "report: $$(pwd)/$(REPORT)"; \
	[ $$status -eq 3 ] || exit $$status

# Two workers per core (tests/conftest.py); tests of one file share a worker.
PYTEST = $(BIN)/pytest --numprocesses auto --dist loadgroup

test: $(VENV)/tests-installed
	@./.ci/need --optional cc:gcc fio:fio openssl:openssl mkfs.ext4:e2fsprogs
	@$(MAKE) --no-print-directory lint
	$(PYTEST)

# Real daemons and networks, several ranks with faults, and long rehearsals.
test-system: system-tools
	$(PYTEST) -m "system and not timed and not installs"

# What speaks to Slurm, once more with a later one; its Python is a later one too.
test-all: test test-system
	./.ci/debian trixie sh -ec 'export PYTHONDONTWRITEBYTECODE=1; python3 -m venv /opt/venv; \
	pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--editable ".[cluster,report,bmc,fleet]" hypothesis pytest pytest-xdist sushy-tools; \
	pytest -p no:cacheprovider -m "not timed and not installs" --numprocesses auto --dist loadgroup \
		tests/slurm tests/fleet'

# Real collectives over links with real faults: what they find depends on how busy the
# machine is, so they are no part of `make test`.
fabric: system-tools
	$(BIN)/pytest -m timed tests/fabric

# The role, from its check mode to its removal.
test-ansible: PYTHONS = 3.11 3.13
test-ansible: $(VENV)/installs-installed packages
	$(BIN)/pytest -m installs tests/packaging/test_ansible.py

# Both images are built, where the network reaches Debian and a package index.
test-container: $(VENV)/installs-installed
	@./.ci/need buildah:buildah
	$(BIN)/pytest -m installs tests/packaging/test_container.py

# The daemons' folder is not in everybody's PATH.
system-tools: $(VENV)/tests-installed
	@PATH="$$PATH:/usr/sbin:/sbin" ./.ci/need fio:fio smartctl:smartmontools stressapptest:stressapptest gcc:gcc ip:iproute2 \
		nft:nftables chromium:chromium chronyd:chrony mkfs.ext4:e2fsprogs shellcheck:shellcheck \
		ipmi-sensors:freeipmi-tools ipmi_sim:openipmi openssl:openssl \
		slurmctld:slurmctld slurmd:slurmd scontrol:slurm-client munged:munge \
		slurmdbd:slurmdbd mariadbd:mariadb-server-core mariadb-admin:mariadb-client \
		man:man-db systemd-analyze:systemd rsyslogd:rsyslog logrotate:logrotate
	@./.ci/unpack prometheus prometheus-node-exporter prometheus-alertmanager

# Installs the packages on a fresh Debian 12 and 13, with and without Slurm (as root; 3 GB).
test-packages: PYTHONS = 3.11 3.13
test-packages: system-tools packages
	@./.ci/need debootstrap:debootstrap lintian:lintian rpm:rpm rpmlint:rpmlint systemd-nspawn:systemd-container
	$(BIN)/pytest -m installs tests/packaging/test_build.py tests/packaging/test_install.py tests/packaging/test_slurm.py

lint: $(VENV)/tests-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q --numprocesses 0 tests/docs/test_prose.py

format: $(VENV)/tests-installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/tests-installed
	@./.ci/need fio:fio
	for name in engine gemm sdc training storage passive prolog preemption sweep collect controller intake history dry_run selection isolate metrics pages days; do $(BIN)/python bench/$$name.py || exit 1; done

$(BIN)/hpcverify: pyproject.toml constraints.txt
	@./.ci/need --venv $(PYTHON)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@echo "installing hpcverify into $(VENV); torch is several GB"
	$(BIN)/pip install --disable-pip-version-check --constraint constraints.txt --editable ".[gpu,report,cluster,bmc,fleet]"
	@touch $@

$(VENV)/tests-installed: $(BIN)/hpcverify
	$(BIN)/pip install --quiet --constraint constraints.txt --group dev
	@touch $@

$(VENV)/installs-installed: $(VENV)/tests-installed
	$(BIN)/pip install --quiet --constraint constraints.txt --group installs
	@touch $@

$(VENV)/packaging-installed: $(BIN)/hpcverify
	$(BIN)/pip install --quiet --constraint constraints.txt --group packaging
	@touch $@

# The distributions' Python: Debian 12, RHEL 9; Ubuntu 24.04, RHEL 9 and 10; Debian 13; Ubuntu 26.04.
PYTHONS ?= 3.11 3.12 3.13 3.14
packages: $(VENV)/packaging-installed
	$(BIN)/python packaging/build.py $(PYTHONS)

# What nodes without a package index install torch from; several GB for each Python.
wheelhouse: $(VENV)/packaging-installed
	$(BIN)/python packaging/wheels.py packaging/torch.txt dist $(PYTHONS)

release: packages
	./packaging/release $(BIN)

# What the packages contain follows pyproject.toml and constraints.txt.
WRITE_LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --constraint constraints.txt
lock: $(VENV)/packaging-installed
	$(WRITE_LOCK) --extra report --extra cluster pyproject.toml packaging/node.in --output-file packaging/node.txt
	$(WRITE_LOCK) --constraint packaging/node.txt --extra bmc --extra fleet pyproject.toml --output-file packaging/controller.txt
	$(WRITE_LOCK) --constraint packaging/node.txt --extra gpu pyproject.toml --output-file packaging/torch.txt

clean:
	rm -rf $(VENV) .debian build dist $(REPORT) .mypy_cache .pytest_cache .ruff_cache

# A link or an anchor that leads nowhere is an error.
docs: $(VENV)/tests-installed
	$(BIN)/python -m sphinx -q -E -W --keep-going -c docs . build/book
	@echo "the book: $$(pwd)/build/book/docs/index.html"

# The JSON Schemas of documents follow the code; tests hold the two together.
WRITE_SCHEMA = $(BIN)/python -c "import json, sys, msgspec; from importlib import import_module; \
	kind = getattr(import_module(sys.argv[1]), sys.argv[2]); \
	print(json.dumps(msgspec.json.schema(kind), indent=1, ensure_ascii=False))"
schema: $(BIN)/hpcverify
	@$(WRITE_SCHEMA) hpcverify.model Run > docs/reference/schema/run.json
	@$(WRITE_SCHEMA) hpcverify.records.collectives CollectiveRun > docs/reference/schema/collectives.json
	@$(WRITE_SCHEMA) hpcverify.commands.gate GateDocument > docs/reference/schema/gate.json
	@$(WRITE_SCHEMA) hpcverify.insight.morning MorningReport > docs/reference/schema/fleet.json
	@$(WRITE_SCHEMA) hpcverify.insight.overview NodesDocument > docs/reference/schema/nodes.json
	@$(WRITE_SCHEMA) hpcverify.insight.outlook ReliabilityReport > docs/reference/schema/reliability.json
	@$(WRITE_SCHEMA) hpcverify.commands.history HistoryDocument > docs/reference/schema/history.json
	@$(WRITE_SCHEMA) hpcverify.events.event Event > docs/reference/schema/event.json

# The classes of faults that suites are judged by follow the tests' table.
faults: $(VENV)/tests-installed
	$(BIN)/python -m tests.coverage.classes

# So do the commands, settings, checks and suites of docs/reference.
reference: $(VENV)/tests-installed
	PYTHONPATH=packaging $(BIN)/python -m tests.docs.pages

# What the commands of the tutorial print, and the report that they write: they are run for it.
tutorial: system-tools
	$(BIN)/python -m tests.docs.transcript

# What a run of each check prints, for the pages of the checks; half an hour.
examples: system-tools
	$(BIN)/python -m tests.docs.examples

# So does the table of a node's states in docs/explanation/design.md.
states: $(VENV)/tests-installed
	$(BIN)/python -m tests.fleet.states_page

# All of the book that the code writes, but for what takes minutes.
pages: schema faults states reference picture

# The pictures in README.md and in the book; that of a node is of a run of the tutorial.
picture: tutorial
	$(BIN)/python -m tests.reports.picture

# So do the tables of what the sdc check finds: the trials are run for it.
sdc-table: $(VENV)/tests-installed
	$(BIN)/python -m tests.checks.sdc.page
