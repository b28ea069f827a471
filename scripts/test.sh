#!/usr/bin/env bash
# Everything that CI runs. One profile, so that the dependencies are compiled once for lint and once for the tests.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

step() {
	local begun="$SECONDS"
	say "── $*"
	"$@"
	say "── $((SECONDS - begun)) s"
}
shell_syntax() {
	local script
	for script in scripts/*.sh .ci/run; do bash -n "$script"; done
	# Where it is installed; CI's machine need not have it.
	if command -v shellcheck >/dev/null 2>&1; then shellcheck -x -S warning scripts/*.sh .ci/run; fi
}

step cargo fmt --all --check
step shell_syntax
step scripts/deny.sh
step cargo clippy --workspace --all-targets --locked -- -D warnings
step cargo test --workspace --locked
