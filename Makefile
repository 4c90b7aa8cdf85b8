# Everything a person does with this tree. `make help` lists the targets.
CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=
TARGET  := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
# Seconds each fuzz target runs under `make fuzz`.
FUZZ_SECONDS ?= 60
# Simulated networks under `make soak`, and the first of them.
SEEDS      ?= 10000
# The same of connection managers, which take a tenth of the time.
CM_SEEDS   ?= 50000
# The same of plain queue pairs that migrate.
MIGRATION_SEEDS ?= 4000
FIRST_SEED ?= 0
# Failures that each program survives under `make migrations`.
MIGRATIONS ?= 1000
# Minutes of programs under `make interop`.
INTEROP_MINUTES ?= 30
# More words for polypath-interop, polypath-bonds and polypath-bench, as --sample --complete and --decide.
INTEROP ?=
BONDS   ?=
BENCH   ?=
# Parts of the engine that Miri can interpret.
MIRI_ENGINE := quota:: moderation:: lane::prompt mp::
# Tests that wait for others' time to pass.
TEST_THREADS ?= 4
# All that the tests need, at once: what the tests' own dependencies ask of shared ones would otherwise
# have most crates compiled again. The tests find it there and ask Cargo for nothing more.
TESTING  = $(CARGO) build --profile testing --workspace --all-targets
TESTED   = env POLYPATH_E2E_DIRECTORY=$(abspath $(TARGET))/testing RUST_TEST_THREADS=$(TEST_THREADS) \
 $(CARGO) test --profile testing --workspace

# A test of programs that fails gets a second attempt by itself, which is said.
ONCE_MORE = tools/once-more

# What users get, and the programs that try it between two hosts.
TRIED    = -p polypath -p polypath-abi -p polypath-e2e
# What users read of docs/; the rest is about how Polypath is made.
USER_DOCS = apm.md bonding.md troubleshooting.md counters.md status-json.md events.md testing-your-program.md limits.md security.md ecosystem.md

.PHONY: help deps build optimised test ecosystem next-debian demo interop bonds moving compare recovery bench soak migrations fuzz mutations stress loom model asan miri lint advisories install clean
.DEFAULT_GOAL := help

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the Debian packages that `make build` needs (root)
	@tools/packages build

build: ## build the command and the library (release)
	$(CARGO) build --release -p polypath -p polypath-abi

# What was built last.
BUILT = $(patsubst %/libpolypath.so,%,$(firstword $(shell ls -t $(TARGET)/release/libpolypath.so \
 $(TARGET)/optimised/release/libpolypath.so 2>/dev/null)))

optimised: ## build once more, laid out by a profile of messages: answers 10 to 15 % sooner (minutes)
	@tools/packages test
	@CARGO="$(CARGO)" tools/optimise $(TARGET)

test: ## install what is missing, then run every test
	@tools/packages test
	$(TESTING)
	$(ONCE_MORE) $(TESTED) --no-fail-fast

ecosystem: ## UCX, libfabric, MPI, rsockets, qperf and fio, each over our devices
	@tools/packages ecosystem
	$(TESTING)
	$(ONCE_MORE) $(TESTED) --test ecosystem --no-fail-fast -- --include-ignored

next-debian: ## the programs, and the kernel's rxe, of the next Debian release with what is built here (root)
	@tools/packages next-debian
	$(TESTING)
	CARGO="$(CARGO)" TEST_THREADS=$(TEST_THREADS) INTEROP_MINUTES=$(INTEROP_MINUTES) \
	 tools/next-debian $(TARGET)

stress: ## all that there may be and one more, and packets that lie (a few minutes)
	@tools/packages test
	$(TESTING)
	$(ONCE_MORE) $(TESTED) --test exhaustion --test spoofing --no-fail-fast -- --test-threads 2

demo: ## two hosts, two links, unmodified programs, two failures
	@tools/packages test
	$(CARGO) build --release $(TRIED)
	$(TARGET)/release/polypath-demo

interop: ## programs between Polypath and Linux rxe in a virtual machine
	@tools/packages interop || echo "going on without: what can't run is said below"
	$(TESTING)
	$(TARGET)/testing/polypath-interop --minutes $(INTEROP_MINUTES) $(INTEROP)

bonds: ## programs over bonds of the Linux kernel, in two virtual machines, while slaves fail
	@tools/packages bonds || echo "going on without: what can't run is said below"
	$(TESTING)
	$(TARGET)/testing/polypath-bonds $(BONDS)

moving: ## programs checkpointed on one host and restored on another one, in a virtual machine
	@tools/packages moving || echo "going on without: what can't run is said below"
	$(TESTING)
	$(TARGET)/testing/polypath-moving

compare: ## path migration, bonding and multi-path side by side, and bonds of Linux; writes docs/compare.md
	@tools/packages bonds || echo "going on without: what can't run is said below"
	$(TESTING)
	$(TARGET)/testing/polypath-bonds --no-cases
	$(TARGET)/testing/polypath-compare --out docs/compare.md --bonds $(TARGET)/bonds

recovery: ## throughput over time while links fail, beside TCP and MPTCP; writes docs/recovery.md with plots
	@tools/packages recovery || echo "going on without: what can't run is said in the page"
	$(TESTING)
	$(TARGET)/testing/polypath-recovery --out docs/recovery.md

bench: ## speed and blackout of the optimised build against what else one could use, as ratios
	@tools/packages bench
	@if CARGO="$(CARGO)" tools/optimise $(TARGET); then built=optimised/release; \
	 else echo "measuring what 'make build' gives"; $(CARGO) build --release $(TRIED) -p polypath-bench && built=release; fi \
	 && $(TARGET)/$$built/polypath-bench $(BENCH)

soak: ## simulated networks from FIRST_SEED on: SEEDS of queue pairs, MIGRATION_SEEDS of some that migrate, CM_SEEDS of connection managers
	$(CARGO) build --profile testing -p polypath-sim
	$(TARGET)/testing/polypath-sim cm --seed $(FIRST_SEED) --count $(CM_SEEDS)
	$(TARGET)/testing/polypath-sim migration --seed $(FIRST_SEED) --count $(MIGRATION_SEEDS)
	$(TARGET)/testing/polypath-sim --seed $(FIRST_SEED) --count $(SEEDS)

migrations: ## programs between plain RoCE hosts survive MIGRATIONS failures each, re-armed after each
	@tools/packages test
	$(TESTING)
	POLYPATH_MIGRATIONS=$(MIGRATIONS) $(TESTED) -p polypath-e2e --test apm -- --nocapture --test-threads 1 one_failure_after

mutations: ## put deliberate faults into the cores and see who finds them (long)
	$(CARGO) build --release -p polypath-mutations
	$(TARGET)/release/polypath-mutations cm --out docs/mutations-cm.md
	$(TARGET)/release/polypath-mutations --out docs/mutations.md
	$(TARGET)/release/polypath-mutations engine --out docs/mutations-engine.md

fuzz: ## run every fuzz target for FUZZ_SECONDS
	@tools/packages fuzz
	fuzz/run.sh $(FUZZ_SECONDS)

# Both say why they do nothing where there is no nightly compiler.
NIGHTLY_TARGET := x86_64-unknown-linux-gnu

model: ## every order of arrival, loss and duplication in small worlds of paths
	cd model && CARGO_TARGET_DIR=$(abspath $(TARGET))/model $(CARGO) test

loom: ## every interleaving of the engine's lock-free parts
	cd loom && CARGO_TARGET_DIR=$(abspath $(TARGET))/loom $(CARGO) test --release

asan: ## unit tests of what is unsafe, under AddressSanitizer (nightly)
	@tools/nightly || exit 0; set -ex; \
	export RUSTFLAGS=-Zsanitizer=address CARGO_TARGET_DIR=$(abspath $(TARGET))/asan; \
	$(CARGO) +nightly test --target $(NIGHTLY_TARGET) --lib \
	  -p polypath-ipc -p polypath-engine -p polypath-broker -p polypath-abi

miri: ## unit tests interpreted, looking for undefined behaviour (nightly)
	@tools/nightly miri rust-src || exit 0; set -ex; \
	export MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=$(abspath $(TARGET))/miri; \
	$(CARGO) +nightly miri test --lib -p polypath-cm -p polypath-paths; \
	$(CARGO) +nightly miri test --lib -p polypath-transport -p polypath-wire -- --skip icrc; \
	$(CARGO) +nightly miri test --lib -p polypath-engine -- $(MIRI_ENGINE)

lint: ## formatting, clippy, documentation, licences
	$(CARGO) fmt --all -- --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items
	tools/ci-run-test
	@if $(CARGO) deny --version >/dev/null 2>&1; then set -e; \
	 $(CARGO) deny --workspace check licenses bans sources; \
	 for own in $(OWN_LOCKS); do echo "$$own/Cargo.lock:"; \
	  $(CARGO) deny --manifest-path $$own/Cargo.toml check licenses sources; done; \
	 else echo "SKIPPED: licences of dependencies: cargo-deny is not installed"; fi

# Workspaces beside the main one, each with a lock of its own.
OWN_LOCKS := fuzz loom model

advisories: ## known faults of the dependencies, as published today
	@$(CARGO) deny --version >/dev/null 2>&1 \
	 || { echo "SKIPPED: advisories: cargo-deny is not installed"; exit 0; }; set -e; \
	 $(CARGO) deny --workspace check advisories; \
	 for own in $(OWN_LOCKS); do echo "$$own/Cargo.lock:"; \
	  $(CARGO) deny --manifest-path $$own/Cargo.toml check advisories; done

install: ## install what was built last, stripped, under PREFIX (default /usr/local)
	@test -n "$(BUILT)" || { echo "run 'make build' or 'make optimised' first"; exit 1; }
	install -sDm755 $(BUILT)/polypath $(DESTDIR)$(PREFIX)/bin/polypath
	install -sDm644 $(BUILT)/libpolypath.so $(DESTDIR)$(PREFIX)/lib/libpolypath.so
	install -Dm644 tools/wireshark/polypath.lua $(DESTDIR)$(PREFIX)/share/polypath/polypath.lua
	install -d $(DESTDIR)$(PREFIX)/share/doc/polypath
	install -m644 README.md $(addprefix docs/,$(USER_DOCS)) $(DESTDIR)$(PREFIX)/share/doc/polypath
	install -d $(DESTDIR)$(PREFIX)/share/man/man1
	$(BUILT)/polypath man --out $(DESTDIR)$(PREFIX)/share/man/man1
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions
	$(BUILT)/polypath completions bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/polypath
	install -d $(DESTDIR)$(PREFIX)/share/zsh/site-functions
	$(BUILT)/polypath completions zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_polypath
	install -d $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	$(BUILT)/polypath completions fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/polypath.fish

clean: ## remove build results
	$(CARGO) clean
