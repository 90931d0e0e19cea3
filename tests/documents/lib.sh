# shellcheck shell=bash
# What the tests of README.md and docs/ share: a temporary folder, servers in it, and the blocks of code of a document.
# Source it at the top of the repository, with `name` set. Then $top is the repository, $bin has the programs ($build:
# debug or release), $python has the official client, and the current directory is the temporary folder.

export SQLX_OFFLINE=true
unset DATABASE_URL TENURE_SECRET_KEY TENURE_DATA_DIR TENURE_ROOT_URL TENURE_LISTEN
build=${build:-debug}
top=$PWD
[ -x "${CARGO_TARGET_DIR:-target}/$build/tenure" ] || { echo "$name: run cargo build first" >&2; exit 1; }
bin=$(cd "${CARGO_TARGET_DIR:-target}/$build" && pwd)
# The documents call the programs by their names.
export PATH=$bin:$PATH
python=$(scripts/python-venv)
case $python in /*) ;; *) python=$PWD/$python ;; esac

folder=$(mktemp -d "${TMPDIR:-/tmp}/tenure-$name.XXXXXX")
# As root the server runs PostgreSQL as another user, who needs access.
chmod 755 "$folder"
processes=()
# True if a process ends within a minute.
has_ended() { # PROCESS
  local tries=0
  while kill -0 "$1" 2>/dev/null; do
    tries=$((tries + 1))
    [ "$tries" -le 600 ] || return 1
    sleep 0.1
  done
}
# shellcheck disable=SC2317 # called by the trap
clean_up() {
  local process
  for process in ${processes[@]+"${processes[@]}"}; do
    kill -TERM "$process" 2>/dev/null || true
    if ! has_ended "$process"; then
      echo "$name: process $process did not end within a minute and is killed" >&2
      kill -KILL "$process" 2>/dev/null || true
    fi
    wait "$process" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean_up EXIT
trap 'exit 130' INT TERM
cd "$folder"

needs() { # COMMAND...
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null || { echo "$name: $command is missing; run scripts/setup --tests" >&2; exit 1; }
  done
}

# Waits until the command succeeds, up to 60 seconds.
wait_for() { # WHAT COMMAND...
  local tries=0 what=$1
  shift
  until "$@" >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -le 300 ] || { echo "$name: waited in vain for $what" >&2; return 1; }
    sleep 0.2
  done
}

free_port() {
  "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Starts a server on a free port; sets $address, where it listens.
serve() { # OPTION...
  address=127.0.0.1:$(free_port)
  serve_again "$@"
}

# Starts a server at $address; its output goes to "out" and "err". Sets $server, its process.
serve_again() { # OPTION...
  : >out
  "$bin/tenure" serve --listen "$address" "$@" >out 2>err &
  server=$!
  processes+=("$server")
  local tries=0
  until grep -q '^tenure ready: ' out; do
    tries=$((tries + 1))
    if [ "$tries" -gt 600 ] || ! kill -0 "$server" 2>/dev/null; then
      echo "$name: the server did not start:" >&2
      tail -n 20 out err >&2
      exit 1
    fi
    sleep 0.1
  done
}

# Stops the server as an operator does.
stop() {
  kill -TERM "$server"
  has_ended "$server" || { echo "$name: the server did not end within a minute" >&2; exit 1; }
  wait "$server"
}

# Ends the server by a signal; ignores the exit code.
end_server() { # SIGNAL
  kill "-$1" "$server"
  { has_ended "$server" && wait "$server"; } 2>/dev/null || true
}

# Prints the access token of root in the data directory.
token_of() { # DATA-DIRECTORY
  "$python" -c 'import json, sys; print(json.load(open(sys.argv[1] + "/root-credentials.json"))["accessToken"])' "$1"
}

# Writes the blocks of code after marks with this name into a file of that name, for the server at
# $address and these programs. Without a document it reads the README.
block() { # NAME [DOCUMENT]
  local document=${2:-README.md}
  awk -v mark="<!-- tour: $1 -->" '
    $0 == mark { found = 1; next }
    found && /^```/ { inside = !inside; found = inside; next }
    inside' "$top/$document" | sed -e "s|127\.0\.0\.1:8080|$address|g" -e "s|target/release/|$bin/|g" >"$1"
  [ -s "$1" ] || { echo "$name: $document has no block \"$1\"" >&2; exit 1; }
}

# Commands that are never run become wrong sooner or later.
all_marked() { # DOCUMENT
  awk '/^```(sh|sql|python|yaml|nginx|caddyfile)$/ && previous !~ /^<!-- tour: / {
      print FILENAME ":" NR ": this block has no mark"; bad = 1 }
    { previous = $0 }
    END { exit bad }' "$top/$1" >&2
}

expect() { # FILE TEXT...
  local file=$1 text
  shift
  for text in "$@"; do
    grep -qF -- "$text" "$file" || { echo "$name: $file lacks $text:" >&2; cat "$file" >&2; exit 1; }
  done
}
