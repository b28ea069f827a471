#!/usr/bin/env bash
# Stops what `make up` started, and nothing else: each process by its pid, if it is really ours. The data stays.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/stack.sh
. scripts/stack.sh

[ -d "$DATA" ] || exit 0
# From the front to the back: whoever is still served finds everything behind it alive.
stop_all_of gate 30
stop_all_of orders 30
stop shop 10
stop mariadb 60
stop queue 30
stop store 30
