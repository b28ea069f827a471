# The developer's habits. Every target installs what it lacks (Debian, Ubuntu); nothing is left running or enabled.
SHELL := bash
.DEFAULT_GOAL := help
.PHONY: help setup setup-build build release test check fmt lint deny schema demo up down rush drill clean-data

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Installs what tests and stack need and this machine lacks
	@scripts/setup.sh

setup-build:
	@scripts/setup.sh build

test: setup ## Everything that CI runs
	@scripts/test.sh

check: setup-build ## Does it compile?
	cargo check --workspace --all-targets

fmt: ## Formats the code
	cargo fmt --all

lint: setup-build ## Format and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings

deny: setup ## Licenses, bans, sources and (where reachable) advisories of the dependencies
	@scripts/deny.sh

schema: setup-build ## Writes conf/schema.json from the configuration's types
	cargo run --quiet -- schema > target/schema.json
	mv target/schema.json conf/schema.json

release: setup-build
	cargo build --release --workspace

demo: setup-build ## A whole sale in one process, with a page to buy on
	cargo run --release -- demo $(ARGS)

up: setup release ## Starts gate, order service, Redis and MariaDB under ./data (GATES=2, ORDERS=2: two of each)
	@scripts/up.sh

down: ## Stops just those
	@scripts/down.sh

rush: setup release ## Sends a crowd through the stack of `make up` and audits the outcome
	@scripts/rush.sh

drill: setup ## Faults in the middle of a rush, each at ten moments (SECKILL_SEEDS="1 2 3": at these)
	SECKILL_SEEDS="$${SECKILL_SEEDS:-1 2 3 4 5 6 7 8 9 10}" \
		cargo test --locked --test it drills:: -- --nocapture --test-threads=1

clean-data: down ## Forgets the stack's data
	rm -rf data
