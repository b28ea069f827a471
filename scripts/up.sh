#!/usr/bin/env bash
# Starts the whole stack as separate processes under ./data, on loopback: two Redis servers, MariaDB, the shop's
# stand-in, order services and gates. GATES=2 and ORDERS=2 start a second one, its ports 100 higher.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=scripts/stack.sh
. scripts/stack.sh

GATES="${GATES:-1}" ORDERS="${ORDERS:-1}"
[[ "$GATES" =~ ^[12]$ && "$ORDERS" =~ ^[12]$ ]] || die "GATES and ORDERS are 1 or 2"
for binary in "$GATE" "$LOADTEST"; do [ -x "$binary" ] || die "$binary is missing: make up builds it"; done

mkdir -p "$DATA"
make_secrets
# The number of gates divides the limits, so a stack of another size is another configuration: its gates and order
# services start anew, as they do with a newer binary. The servers below them go on.
if [ "$(cat "$DATA/gates" "$DATA/orders" 2>/dev/null | paste -sd' ')" != "$GATES $ORDERS" ] ||
	[ "$GATE" -nt "$DATA/gate-1/pid" ]; then
	stop_all_of gate 30
	stop_all_of orders 30
fi
echo "$GATES" >"$DATA/gates"
echo "$ORDERS" >"$DATA/orders"

say "servers:"
# The store says who has won: every win is on the disk before it is told. One fsync serves a whole batch.
start_redis store 6390 store-password always
# The queue may lose a second: the gate delivers again what is not booked.
start_redis queue 6391 queue-password everysec
start_mariadb

say "services:"
is_running gate-1 || forget_old_sales
[ -n "$(sales)" ] || add_sale try-it 100 0 2592000
write_config
start_shop
start_orders
start_gates
if [ -e "$SALES/try-it.yaml" ] && ! [ -e "$DATA/try-it.preheated" ]; then
	"$GATE" preheat -c "$CONFIG" try-it >&2 && touch "$DATA/try-it.preheated"
fi

say "
up. The shop: http://127.0.0.1:8080/ (through the gate; sign in there)
Look at it:  $GATE status -c $CONFIG
A crowd:     make rush
An end:      make down"
