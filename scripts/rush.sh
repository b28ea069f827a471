#!/usr/bin/env bash
# A fresh sale on the stack of `make up`, a crowd at its gates, an audit of what it left behind.
#
#   USERS=50000 ATTEMPTS=200000 STOCK=1000 OPENS_IN=35 JSON=1 make rush
#
# Each rush is a sale of its own that opens a moment later, as a real one does: it is written into the configuration,
# and the gates read it again while they run. A list of sales prepared in advance would all be open already, and nobody
# would be refused for coming early.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/stack.sh
. scripts/stack.sh

USERS="${USERS:-50000}" ATTEMPTS="${ATTEMPTS:-200000}" STOCK="${STOCK:-1000}" OPENS_IN="${OPENS_IN:-35}"
{ [ -s "$DATA/gates" ] && is_running gate-1 && is_running mariadb; } || die "nothing is up: make up first"
for number in "$USERS" "$ATTEMPTS" "$STOCK" "$OPENS_IN"; do
	[[ "$number" =~ ^[1-9][0-9]*$ ]] || die "USERS, ATTEMPTS, STOCK and OPENS_IN are whole numbers above 0"
done

# By the time, so that they sort by age.
sale="rush-$(date -u +%Y%m%d-%H%M%S)"
add_sale "$sale" "$STOCK" "$OPENS_IN" 3600
begun="$SECONDS"
write_config
reload_gates
"$GATE" preheat -c "$CONFIG" "$sale" >&2

gates="$(for name in $(gates); do echo "127.0.0.1:$(port 8080 "$name")"; done | paste -sd,)"
metrics="$(for name in $(gates); do echo "127.0.0.1:$(port 8082 "$name")"; done | paste -sd,)"
# The buyers arrive before the start, and none after it.
left="$((OPENS_IN - (SECONDS - begun)))"
((left > 3)) || die "only $left s are left to the start: raise OPENS_IN"
say "$sale: $STOCK units, $USERS buyers, opens in $left s"
raise_descriptors
exec "$LOADTEST" rush --activity "$sale" --sku phone --stock "$STOCK" --users "$USERS" --attempts "$ATTEMPTS" \
	--gates "$gates" --metrics "$metrics" --arrive-within-seconds "$((left - 3))" \
	--user-key-file "$DATA/secrets/user-key" --issuer "$ISSUER" --audience "$AUDIENCE" \
	--redis redis://127.0.0.1:6390/ --redis-password-file "$DATA/secrets/store-password" \
	--mysql mysql://seckill@127.0.0.1:3390/seckill --mysql-password-file "$DATA/secrets/ledger-password" \
	${JSON:+--json}
