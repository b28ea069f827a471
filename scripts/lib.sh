# Sourced by the other scripts: where things are, how to speak, how to start and stop a process of our own.
# shellcheck shell=bash

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
DATA="$ROOT/data"
export PATH="$PATH:/usr/sbin:/sbin:${CARGO_HOME:-$HOME/.cargo}/bin"

say() { printf '%s\n' "$*" >&2; }
die() {
	say "error: $*"
	exit 1
}

# Each process runs in a folder of its own under ./data, and its pid stands there. A pid counts as ours only if the
# process really runs in that folder: a number left over from another day never stops a stranger.
is_running() {
	local folder="$DATA/$1" pid
	[ -s "$folder/pid" ] || return 1
	pid="$(cat "$folder/pid")"
	[ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$folder" ]
}

# start NAME COMMAND…: in the background, in ./data/NAME, its output in ./data/NAME/log.
start() {
	local name="$1" folder="$DATA/$1"
	shift
	if is_running "$name"; then
		say "  $name runs already (pid $(cat "$folder/pid"))"
		return
	fi
	mkdir -p "$folder"
	(
		cd "$folder" || exit 1
		# A process of its own session: Ctrl-C at the terminal is not meant for it.
		exec setsid "$@" >>log 2>&1 </dev/null
	) &
	echo "$!" >"$folder/pid"
}

# wait_for NAME WHAT SECONDS COMMAND…: until the command succeeds; fails with the log's end if the process has ended.
wait_for() {
	local name="$1" what="$2" patience="$3" begun
	shift 3
	begun="$SECONDS"
	until "$@" >/dev/null 2>&1; do
		# The folder is entered a moment after the start.
		if ((SECONDS - begun > 1)) && ! is_running "$name"; then
			tail -n 20 "$DATA/$name/log" >&2
			die "$name ended before it $what; all it said is in data/$name/log"
		fi
		if ((SECONDS - begun > patience)); then
			tail -n 20 "$DATA/$name/log" >&2
			die "$name never $what in $patience s; all it said is in data/$name/log"
		fi
		sleep 0.1
	done
	say "  $name $what"
}

# stop NAME SECONDS: asks it to end; insists after that time.
stop() {
	local name="$1" patience="$2" folder="$DATA/$1" pid begun
	if ! is_running "$name"; then
		rm -f "$folder/pid"
		return
	fi
	pid="$(cat "$folder/pid")"
	kill -TERM "$pid"
	begun="$SECONDS"
	while is_running "$name"; do
		if ((SECONDS - begun > patience)); then
			say "  $name did not end in $patience s: killed"
			kill -KILL "$pid" 2>/dev/null || true
			begun="$SECONDS"
		fi
		sleep 0.1
	done
	rm -f "$folder/pid"
	say "  $name stopped"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
http_ok() { curl --silent --fail --max-time 2 --output /dev/null "$1"; }

secret() { cat "$DATA/secrets/$1"; }
