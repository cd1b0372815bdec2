# foreswap: `make demo` shows it at work, `make test` runs every test.
# Both set up what they need first (scripts/setup).

.PHONY: build quick test test-full unit e2e demo book deb wheel setup setup-full lint clean help
.DEFAULT_GOAL := help

CARGO ?= cargo
TARGET = $(or $(CARGO_TARGET_DIR),target)
# The command, and the objects that it and other programs load.
SHIPPED = -p foreswap-cli -p foreswap-preload -p foreswap-capi -p foreswap-pyfiles
# End-to-end tests run real programs of hundreds of megabytes: two at a time.
E2E_THREADS ?= 2

help:
	@echo "make demo       a real program at a quarter of its memory, its output compared"
	@echo "make test       every test (sizes that fit a small machine)"
	@echo "make test-full  the end-to-end tests at their full sizes, and those of more programs"
	@echo "make build      $(TARGET)/release/foreswap, libforeswap_preload.so and libforeswap_capi.so"
	@echo "make deb        $(TARGET)/packages/foreswap_VERSION_amd64.deb"
	@echo "make wheel      $(TARGET)/packages/foreswap-VERSION-...whl, for pip"
	@echo "make book       $(TARGET)/book, the book as pages"
	@echo "make lint       format, clippy, rustdoc, licences, the core's purity, the documents, the book"
	@echo "make setup      install what tests and demo need"

build:
	@command -v $(CARGO) >/dev/null || { echo "cargo not found: install the Rust toolchain (1.95 or newer), https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --release --locked $(SHIPPED)

# What `make test` tests: as in a release, but linked in less time. `make test-full` tests that of a release.
quick:
	@command -v $(CARGO) >/dev/null || { echo "cargo not found: install the Rust toolchain (1.95 or newer), https://rustup.rs" >&2; exit 1; }
	$(CARGO) build --profile quick --locked $(SHIPPED)

deb:
	@scripts/package-deb

wheel:
	@scripts/package-wheel

book:
	@scripts/book

setup:
	@scripts/setup

test: setup quick unit e2e

unit:
	$(CARGO) test --profile quick --locked --workspace --exclude foreswap-e2e --no-fail-fast
	$(CARGO) test --profile quick --locked -p foreswap-lab --features planted,ablate --test planted
	$(CARGO) test --profile quick --locked -p foreswap-lab --features planted,ablate --lib worth

e2e:
	$(CARGO) test --profile quick --locked -p foreswap-e2e --no-fail-fast -- --test-threads=$(E2E_THREADS)

setup-full: setup
	@scripts/setup-full

# With those programs that `make test` has no time for.
test-full: setup-full build unit
	FORESWAP_E2E_FULL=1 FORESWAP_BIN=$(abspath $(TARGET))/release/foreswap $(CARGO) test --profile quick --locked -p foreswap-e2e --no-fail-fast -- --test-threads=1 --include-ignored

demo: setup build
	@scripts/demo

lint:
	$(CARGO) fmt --all --check
	scripts/check-core
	$(CARGO) clippy --profile quick --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --profile quick --locked -p foreswap-lab --features planted,ablate --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --profile quick --locked --workspace --no-deps --document-private-items
	scripts/check-deps
	scripts/draw-figures --check
	scripts/check-docs
	scripts/book

clean:
	$(CARGO) clean
	rm -rf .venv .venv-full python/build python/*.egg-info
