# `make help` lists what there is. `make lab`, `make check` and `make test` are the commands of the README; each target
# sets up what it needs.
CARGO ?= cargo
# Where cargo puts what it builds (CARGO_TARGET_DIR, or target/).
TARGET := $(or $(CARGO_TARGET_DIR),target)
SCENARIO ?= fairness
LAB_ARGS ?=
FUZZ_SECONDS ?= 60
# Papers whose figures the simulated fabric reproduces, the feeds' closed loop, and networks that are not as told.
PAPERS ?= flowtune rpm fncc sird dart feeds obey
RESULTS_ARGS ?= --sensitivity
# A figure of each that takes seconds.
QUICK_FIGURES ?= flowtune:D rpm:lemma1 fncc:fig10 sird:fig3 dart:fig9 feeds:loads obey:told
# A whole run compiles everything once: what cargo keeps for the next compilation would double the disk that it takes.
export CARGO_INCREMENTAL ?= 0
ROOT := $(if $(filter 0,$(shell id -u)),,sudo)

# Their lib tests need neither root nor network namespaces.
LIBRARIES := $(addprefix -p ratewright-,topology proto io dpdk allocator endpointd plot sizes simfabric cli lab bench)

# Parts of `make nightly` and `make weekly`, each a target of its own.
LABS := fairness coflow failover mixed use feeds starts links safety check obey
NIGHTLY := tests-nightly $(addprefix lab-,$(LABS)) test-page test-monitoring figures fuzz memcheck instructions deny test-dpdk
# Those that only compute run while labs wait for their networks. test-dpdk waits for them: it builds another allocator
# at the same place.
BESIDE := figures fuzz memcheck instructions deny
LAST := test-dpdk
# Fewer runs than `make lab` has, so that all of nightly fits into 100 minutes.
lab-use: LAB_ARGS := --runs 2 --duration-scale 0.6
lab-links: LAB_ARGS := --runs 1
lab-safety: LAB_ARGS := --runs 1 --duration-scale 0.4
lab-check: LAB_ARGS := --runs 1
WEEKLY := mutants asan monitoring-soak safety-soak check-soak

.PHONY: asan bench bins build check check-soak clippy container container-test deny doc doctests ec2-check ec2-mock examples figures figures-quick fmt fuzz help instructions kernels kubernetes-check lab memcheck monitoring-soak mutants nextest nightly packages packages-test page-picture prose require-root results safety-soak setup setup-check test test-dpdk test-lib test-monitoring test-page tests tests-nightly weekly

## help: list the targets
help:
	@sed -n '/^## /{N;s/^## //;s/\n## / /;s/\n.*//;s/^\([^ :]*\): \(.*\)/\1\t\2/;p}' $(firstword $(MAKEFILE_LIST)) | \
	  while IFS="$$(printf '\t')" read -r name text; do printf '%-18s %s\n' "$$name" "$$text"; done

## lab: set up, build, and run the fairness scenario (SCENARIO=coflow|failover|mixed|use|feeds|starts|links|safety|obey|check for the others)
lab: build
	$(ROOT) $(TARGET)/debug/ratewright-lab $(SCENARIO) --json lab-out/$(SCENARIO).json $(LAB_ARGS)

build: setup
	$(CARGO) build --locked -p ratewright-allocator -p ratewright-endpointd -p ratewright-cli -p ratewright-lab --bins

## check: format, clippy, prose, lib tests: no root, no network namespaces
check: setup-check fmt clippy prose test-lib

## test: the gate: format, clippy, prose, docs, doc tests, unit, property, namespace and kernel tests, examples, a figure
## of each paper
test: require-root setup-check fmt prose
	+scripts/test.sh clippy doc doctests examples figures-quick

## nightly: what is slow and rarely moves, in parts; those that are green at this commit are left out
## (PARTS="figures memcheck" for some)
nightly: require-root setup-check
	+BESIDE="$(BESIDE)" LAST="$(LAST)" scripts/parts.sh nightly $(NIGHTLY) -- $(PARTS)

## weekly: mutants, AddressSanitizer, soaks of an hour, in parts like nightly
weekly: require-root
	+scripts/parts.sh weekly $(WEEKLY) -- $(PARTS)

## test-dpdk: install libdpdk, then lint and test everything that the feature `dpdk` adds
test-dpdk: require-root
	@scripts/setup.sh dpdk
	$(CARGO) clippy --locked -p ratewright-dpdk --features dpdk --all-targets -- -D warnings
	$(CARGO) nextest run --locked -p ratewright-dpdk --features dpdk
	$(CARGO) clippy --locked -p ratewright-allocator --features dpdk --lib --bins --test behaviour -- -D warnings
	$(CARGO) nextest run --locked -p ratewright-allocator --features dpdk --lib --test behaviour -E 'test(dpdk)'
	$(CARGO) build --locked --workspace --features ratewright-allocator/dpdk --bin ratewright-allocator
	$(CARGO) build --locked --workspace --bin ratewright-bench
	$(TARGET)/debug/ratewright-bench swarm --transport dpdk --sessions 8 --flows 64 --seconds 1 --churn 500 --json | \
	  tee -a /dev/stderr | grep -q '"lost_views":0'

## ec2-check: lint deploy/aws, hold it against rules, schemas and EC2's model (no cloud, seconds)
ec2-check:
	@scripts/setup.sh ec2
	$(TARGET)/ec2-venv/bin/python deploy/aws/check.py $(TARGET)/ec2-venv/schema-cloud-config-v1.json

## ec2-mock: ec2-check, then the stack of deploy/aws against moto's server, and its instances in network namespaces
ec2-mock: require-root ec2-check bins
	$(TARGET)/ec2-venv/bin/python deploy/aws/mock.py $(TARGET)/debug

## kernels: the back ends' tests and the lab on Debian's kernels in QEMU, and two guests together; writes
## docs/operating/kernels.md (KERNELS=6.1 for one of them)
kernels: require-root
	@scripts/setup.sh guests
	scripts/kernels.py $(KERNELS)

## packages: .deb and .rpm of the release profile, built twice, with lintian and rpmlint
packages:
	@scripts/setup.sh packages
	scripts/packages.sh

## packages-test: packages, then their installation, upgrade, removal and purge in a fresh Debian guest
packages-test: require-root
	@scripts/setup.sh packages
	scripts/packages-test.sh

## container: OCI images of the release profile, built twice, out of Debian's libraries
container:
	@scripts/setup.sh container
	scripts/container.sh

## container-test: container, then the images run as deploy/kubernetes does, in network namespaces
container-test: require-root
	@scripts/setup.sh container
	scripts/container-test.sh

## kubernetes-check: hold deploy/kubernetes against the API's schemas, rules and our programs (no cluster, seconds)
kubernetes-check: bins
	@scripts/setup.sh kubernetes
	$(TARGET)/kubernetes-venv/bin/python deploy/kubernetes/check.py $(TARGET)/debug

# Said once here, and not by every test that builds network namespaces.
require-root:
	@if [ "$$(id -u)" != 0 ]; then \
	  echo "make test: run it as root (sudo make test): the network-namespace and BPF tests need it" >&2; exit 1; fi

setup:
	@scripts/setup.sh run

setup-check:
	@scripts/setup.sh check

fmt: setup-check
	$(CARGO) fmt --all --check
	rustfmt --check --edition 2024 simfabric/src/scheme/*.rs simfabric/src/net/queue/*.rs # a macro's modules

## prose: line lengths, sentences, doc comments' first words, dead links
prose: setup-check
	scripts/prose.py

test-lib: setup-check
	$(CARGO) nextest run --locked --lib $(LIBRARIES)

clippy: setup-check
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings

doc: setup-check
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --locked --workspace --no-deps --document-private-items

## deny: licences, bans and sources of what we link
deny:
	@scripts/setup.sh licences
	$(CARGO) deny --locked check licenses bans sources

## figures: the short form of every figure on the simulated fabric (tables, JSON, SVG); fails if a verdict is not the
## one that its experiment records
figures: bins
	set -e; for paper in $(PAPERS); do \
	  $(TARGET)/debug/simfabric reproduce $$paper all --quick --strict \
	    --out $(TARGET)/reproduce/$$paper --markdown $(TARGET)/reproduce/$$paper.md; done

## figures-quick: the same of one figure of each paper
figures-quick: tests
	set -e; for figure in $(QUICK_FIGURES); do \
	  $(TARGET)/debug/simfabric reproduce $${figure%:*} $${figure#*:} --quick --strict --out $(TARGET)/reproduce/quick; done

## results: write the tables of docs/simfabric anew: every figure's short form, and its sensitivity to parameters (five
## times as long; RESULTS_ARGS= without)
results: bins
	set -e; for paper in $(PAPERS); do \
	  $(TARGET)/debug/simfabric reproduce $$paper all --quick $(RESULTS_ARGS) \
	    --out $(TARGET)/reproduce/$$paper --markdown docs/simfabric/results-$$paper.md; done

## test-page: the allocator's page in Debian's Chromium, before a live allocator with a swarm of hosts
test-page: bins
	@scripts/setup.sh page
	cd allocator/tests/page && npm ci --silent --no-audit --no-fund && npm test

## test-monitoring: the dashboard and the alert rules before a live allocator, a daemon and Debian's Prometheus
test-monitoring: require-root bins
	@scripts/setup.sh monitoring
	deploy/monitoring/generate.py --check
	promtool check rules deploy/monitoring/alerts.yml
	promtool test rules deploy/monitoring/alerts.test.yml
	deploy/monitoring/live.py alerts

## monitoring-soak: no alert fires before a swarm at rest, with the rules as they are (MINUTES=60)
monitoring-soak: require-root bins
	@scripts/setup.sh monitoring
	deploy/monitoring/live.py soak $(or $(MINUTES),60)

## page-picture: take the guides' picture of the page, docs/images/page.png (RACKS=4)
page-picture: bins
	@scripts/setup.sh page
	cd allocator/tests/page && npm ci --silent --no-audit --no-fund && node screenshot.mjs $(CURDIR)/docs/images $(or $(RACKS),4)

# All of the workspace at once: cargo gives a dependency the features that the chosen packages ask for, so that
# a choice of fewer packages would compile ours anew.
bins: setup-check
	$(CARGO) build --locked --workspace --bins --examples

# One compilation of all tests, programs and examples.
tests: setup-check
	$(CARGO) nextest run --locked --workspace --no-run

nextest: tests doctests
	$(CARGO) nextest run --locked --workspace

doctests: setup-check
	$(CARGO) test --quiet --locked --workspace --doc

examples: tests
	set -e; for example in optimise utility session plan; do $(TARGET)/debug/examples/$$example; done

## tests-nightly: the tests that are too slow for the gate: those in modules called `nightly`
tests-nightly: require-root tests
	$(CARGO) nextest run --locked --workspace --profile nightly

# A scenario of the lab as a part of nightly.
lab-%: bins
	$(ROOT) $(TARGET)/debug/ratewright-lab $* --json lab-out/$*.json --plain $(LAB_ARGS)

## safety-soak: ten runs of the lab's safety scenario
safety-soak: bins
	$(ROOT) $(TARGET)/debug/ratewright-lab safety --runs 10 --json lab-out/safety-soak.json --plain

## check-soak: ten minutes of the lab's fairness and mixed scenarios, in which nothing may be named as not as told
check-soak: bins
	$(ROOT) $(TARGET)/debug/ratewright-lab fairness --no-baseline --duration-scale 35 --json lab-out/check-soak-fairness.json --plain
	$(ROOT) $(TARGET)/debug/ratewright-lab mixed --no-baseline --duration-scale 50 --json lab-out/check-soak-mixed.json --plain

## memcheck: the parallel engine's equality tests under valgrind (scalar and AVX2)
memcheck: setup-check
	@scripts/setup.sh valgrind
	scripts/sanitize.sh memcheck

## asan: the parallel engine's tests under AddressSanitizer (AVX-512 too); builds everything anew
asan: setup-check
	scripts/sanitize.sh address

## instructions: instruction counts of the engines against benches/instructions.txt
instructions: bins
	@scripts/setup.sh valgrind
	$(TARGET)/debug/instructions check

## fuzz: every fuzz target for a while (FUZZ_SECONDS=60); builds them with coverage in fuzz/target
fuzz: setup-check
	scripts/fuzz.sh $(FUZZ_SECONDS)

## mutants: alter sessions, leases, admission, optimiser and flow tables, and see that tests notice (hours;
## PARTS="lease flows" for some; needs cargo-mutants, which it installs)
mutants:
	@scripts/setup.sh mutants
	scripts/mutants.sh $(PARTS)

## bench: criterion benchmarks (release profile)
bench: setup
	$(CARGO) bench --locked -p ratewright-bench
