# Sourced by up.sh, down.sh and rush.sh: what the stack consists of.
# shellcheck shell=bash

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

BIN_DIR="${BIN_DIR:-$ROOT/target/release}"
GATE="$BIN_DIR/seckill-gate"
LOADTEST="$BIN_DIR/loadtest"
CONFIG="$DATA/seckill.yaml"
ISSUER=https://shop.example
AUDIENCE=seckill
SALES="$DATA/sales"
# A process may hold this many connections; the default of 1,024 is none for a flash sale.
DESCRIPTORS=20000

raise_descriptors() {
	# shellcheck disable=SC3045
	ulimit -n "$DESCRIPTORS" 2>/dev/null || die "this shell may not open $DESCRIPTORS files (hard limit $(ulimit -Hn))"
}

# make_secret NAME COMMAND…: once, readable only to the owner.
make_secret() {
	local file="$DATA/secrets/$1"
	shift
	[ -s "$file" ] && return
	(
		umask 077
		"$@" >"$file.new" && mv "$file.new" "$file"
	)
}

make_secrets() {
	mkdir -p "$DATA/secrets"
	chmod 700 "$DATA/secrets"
	local name
	for name in user-key device-key token-key admin-token admin-read-token orders-token store-password queue-password ledger-password; do
		make_secret "$name" openssl rand -hex 32
	done
	make_secret ticket-key.pem openssl genpkey -algorithm ed25519
	make_secret ticket-key.pub.pem openssl pkey -in "$DATA/secrets/ticket-key.pem" -pubout
}

# The names of gates and order services of this stack, as `up` was asked for.
gates() { seq -f 'gate-%g' 1 "$(cat "$DATA/gates")"; }
order_services() { seq -f 'orders-%g' 1 "$(cat "$DATA/orders")"; }

# port BASE NAME: of the second one, 100 higher.
port() { echo "$(($1 + 100 * (${2##*-} - 1)))"; }

# Writes the configuration: the defaults everywhere, except for what a machine with everything on it needs. Sales are
# added by `add_sale`, each in a file of its own in ./data/sales.
write_config() {
	local names
	names="$(gates | paste -sd, | sed 's/,/, /g')"
	(
		umask 077
		cat >"$CONFIG.new" <<-YAML
			# Written by scripts/stack.sh; the next \`make up\` or \`make rush\` writes it again.
			gate:
			  id: gate-1
			  listen: 127.0.0.1:8080
			  shop:
			    url: http://127.0.0.1:8070
			  admin_token: { file: "$DATA/secrets/admin-token" }
			  admin_read_token: { file: "$DATA/secrets/admin-read-token" }
			  # No load balancer has to notice: restarts are short.
			  drain_delay: 200ms
			deployment:
			  gates: [$names]
			store:
			  kind: redis
			  url: redis://127.0.0.1:6390/0
			  password: { file: "$DATA/secrets/store-password" }
			identity:
			  keys:
			    - { kid: shop, algorithm: HS256, key: { file: "$DATA/secrets/user-key" } }
			  issuer: $ISSUER
			  audience: $AUDIENCE
			  cookie: shop_session
			  device_secret: { file: "$DATA/secrets/device-key" }
			tokens:
			  keys:
			    - { kid: one, key: { file: "$DATA/secrets/token-key" } }
			orders:
			  url: http://127.0.0.1:8090/orders
			  ticket_key: { file: "$DATA/secrets/ticket-key.pem" }
			  api_token: { file: "$DATA/secrets/orders-token" }
			order_service:
			  listen: 127.0.0.1:8090
			  api_token: { file: "$DATA/secrets/orders-token" }
			  ticket_public_key: { file: "$DATA/secrets/ticket-key.pub.pem" }
			  queue:
			    kind: redis
			    url: redis://127.0.0.1:6391/0
			    password: { file: "$DATA/secrets/queue-password" }
			  ledger:
			    kind: mysql
			    url: mysql://seckill@127.0.0.1:3390/seckill
			    password: { file: "$DATA/secrets/ledger-password" }
		YAML
		local sales=()
		mapfile -t sales < <(sales)
		if [ "${#sales[@]}" -eq 0 ]; then
			echo 'activities: {}'
		else
			echo 'activities:'
			cat "${sales[@]}"
		fi >>"$CONFIG.new"
	)
	local faults
	faults="$("$GATE" check -c "$CONFIG.new" 2>&1)" || die "the configuration has faults:
$faults"
	mv "$CONFIG.new" "$CONFIG"
}

sales() { [ ! -d "$SALES" ] || find "$SALES" -name '*.yaml' | sort; }

# All but the last five: each sale costs its gates a poll four times a second. Only before gates start; a reload takes no
# sale away whose wins are kept.
forget_old_sales() { sales | head -n -5 | xargs -r -d '\n' rm -f; }

# add_sale NAME STOCK STARTS_IN_SECONDS LASTS_SECONDS
add_sale() {
	local name="$1" stock="$2" starts ends
	starts="$(date -u -d "+$3 seconds" +%Y-%m-%dT%H:%M:%SZ)"
	ends="$(date -u -d "+$(($3 + $4)) seconds" +%Y-%m-%dT%H:%M:%SZ)"
	mkdir -p "$SALES"
	cat >"$SALES/$name.yaml" <<-YAML
		  $name:
		    title: Flash sale $name
		    starts_at: $starts
		    ends_at: $ends
		    skus:
		      phone: { stock: $stock, title: Phone, price: "¥ 1,999" }
	YAML
	sales | sed 's|.*/||; s|\.yaml$||' >"$DATA/sales.txt"
}

# redis_conf NAME PORT PASSWORD_FILE FSYNC: prints a configuration, conf/redis-NAME.conf with what is this machine's. The
# password stands in it and not on the command line, which everybody on the machine can read.
redis_conf() {
	cat <<-CONF
		include "$ROOT/conf/redis-$1.conf"
		bind 127.0.0.1
		port $2
		requirepass $(secret "$3")
		dir "$DATA/$1"
		appendfsync $4
		maxmemory 512mb
	CONF
}

# claim PORT NAME: dies if a stranger has it; ours would fail, and the stranger would be taken for ours.
claim() { is_running "$2" || ! listens "$1" || die "port $1, meant for $2, is taken by another process"; }

redis_answers() { printf 'AUTH %s\r\nPING\r\n' "$(secret "$2")" | timeout 2 bash -c "exec 3<>/dev/tcp/127.0.0.1/$1; cat >&3; head -n 2 <&3" | grep -q PONG; }

start_redis() {
	local name="$1" port="$2" password="$3" fsync="$4"
	claim "$port" "$name"
	mkdir -p "$DATA/$name"
	(
		umask 077
		redis_conf "$name" "$port" "$password" "$fsync" >"$DATA/$name/redis.conf"
	)
	start "$name" redis-server "$DATA/$name/redis.conf" --daemonize no
	wait_for "$name" "answers on $port" 30 redis_answers "$port" "$password"
}

start_mariadb() {
	local folder="$DATA/mariadb" as=()
	claim 3390 mariadb
	mkdir -p "$folder"
	# It refuses to run as root unless told so.
	[ "$(id -u)" -ne 0 ] || as=(--user=root)
	if ! [ -d "$folder/mysql" ]; then
		say "  mariadb: creating its files"
		mariadb-install-db --no-defaults --datadir="$folder" --skip-test-db --auth-root-authentication-method=socket \
			"${as[@]}" >"$folder.install.log" 2>&1 || die "mariadb-install-db failed: see data/mariadb.install.log"
	fi
	(
		umask 077
		cat >"$DATA/secrets/ledger.sql" <<-SQL
			CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;
			CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1' IDENTIFIED BY '$(secret ledger-password)';
			GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';
		SQL
	)
	# `innodb-flush-log-at-trx-commit` stays 1, its default: what is booked is on the disk.
	start mariadb mariadbd --no-defaults --datadir="$folder" --port=3390 --bind-address=127.0.0.1 \
		--socket="$folder/mariadb.sock" --pid-file="$folder/mariadb.pid" --skip-name-resolve --skip-log-bin \
		--innodb-buffer-pool-size=256M --max-connections=100 --init-file="$DATA/secrets/ledger.sql" "${as[@]}"
	wait_for mariadb "listens on 3390" 60 listens 3390
}

start_shop() {
	claim 8070 shop
	start shop "$LOADTEST" shop --listen 127.0.0.1:8070 --user-key-file "$DATA/secrets/user-key" --issuer "$ISSUER" \
		--audience "$AUDIENCE" --sales-file "$DATA/sales.txt"
	wait_for shop "answers on 8070" 10 http_ok http://127.0.0.1:8070/healthz
}

start_orders() {
	local name listen
	for name in $(order_services); do
		listen="127.0.0.1:$(port 8090 "$name")"
		claim "${listen#*:}" "$name"
		start "$name" "$GATE" orders -c "$CONFIG" --listen "$listen"
	done
	for name in $(order_services); do
		wait_for "$name" "is ready on $(port 8090 "$name")" 30 http_ok "http://127.0.0.1:$(port 8090 "$name")/readyz"
	done
}

start_gates() {
	local name base
	raise_descriptors
	for name in $(gates); do
		for base in 8080 8081 8082; do claim "$(port "$base" "$name")" "$name"; done
		start "$name" "$GATE" serve -c "$CONFIG" --gate "$name" --listen "127.0.0.1:$(port 8080 "$name")" \
			--admin "127.0.0.1:$(port 8081 "$name")" --metrics "127.0.0.1:$(port 8082 "$name")"
	done
	for name in $(gates); do
		wait_for "$name" "is ready on $(port 8080 "$name")" 30 http_ok "http://127.0.0.1:$(port 8081 "$name")/readyz"
	done
}

# The gates read the configuration again while they run.
reload_gates() {
	local name
	for name in $(gates); do
		"$GATE" reload -c "$CONFIG" --admin "http://127.0.0.1:$(port 8081 "$name")" | sed "s/^/  $name: /" >&2
	done
}

stop_all_of() {
	local name folder
	for folder in "$DATA/$1"-[0-9]*/; do
		[ -d "$folder" ] || continue
		name="$(basename "$folder")"
		stop "$name" "$2"
	done
}
