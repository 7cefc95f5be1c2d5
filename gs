#!/usr/bin/env bash
# The launcher: makes the virtual environment when it is missing or out of date, then runs gainstage in it.
#
#   ./gs compare grpo rgra      any command of gainstage
#   ./gs test [pytest args]     the tests
#   ./gs lint                   style, types and arrows
#   ./gs setup                  only the environment
#   ./gs python [args]          the environment's Python
#
# Variables: GS_VENV (folder of the environment, default .venv beside this file), GS_PYTHON (the Python to build it
# with), GS_STRICT=1 (optional packages that do not build are an error), GS_DRY_RUN=1 (print, do nothing).
set -euo pipefail

self=${BASH_SOURCE[0]}
while [ -L "$self" ]; do  # called through a link, for instance from a folder in PATH
  link=$(readlink -- "$self")
  case $link in /*) self=$link ;; *) self=$(dirname -- "$self")/$link ;; esac
done
root=$(cd -P -- "$(dirname -- "$self")" && pwd)
venv=${GS_VENV:-$root/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
stamp=$venv/gs-stamp          # written last: what the finished environment was made from
building=$venv/gs-building    # there while a set-up is at work, and after one that was interrupted
log=$venv/gs-setup.log
dry=${GS_DRY_RUN:-}
ticker=""
unset PYTHONHOME

say() { printf 'gs: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }
stop_ticker() { [ -z "$ticker" ] || kill "$ticker" 2>/dev/null || true; ticker=""; }
trap stop_ticker EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# What the environment is made from. A moved clone, a new lock file or new package metadata change it.
ingredients() {
  printf 'root %s\n' "$root"
  cat -- "$root/requirements.lock" "$root/requirements-compiled.lock" "$root/pyproject.toml"
}

up_to_date() {
  [ -x "$venv/bin/python" ] && [ -f "$stamp" ] && [ ! -f "$building" ] && ingredients | cmp -s - "$stamp"
}

# A Python that is new enough and can make virtual environments; the one a user gets by default comes first.
find_python() {
  local name found seen=""
  if [ -n "${GS_PYTHON:-}" ]; then set -- "$GS_PYTHON"; else
    set -- python3 python3.11 python3.12 python3.13 python3.14 python
  fi
  for name; do
    found=$(command -v -- "$name" 2>/dev/null) || continue
    if ! "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      seen="$seen $found ($("$found" --version 2>&1 | head -n 1 || true));"
    elif ! "$found" -c 'import ensurepip, venv' >/dev/null 2>&1; then
      seen="$seen $found (without the venv module: on Debian or Ubuntu, apt install python3-venv);"
    else
      printf '%s\n' "$found"
      return
    fi
  done
  die "gainstage needs Python 3.11 or newer with its venv module; found:${seen:- none}" \
    "Install one, or name one: GS_PYTHON=/path/to/python3.12 ./gs ..."
}

# step TITLE COMMAND...: says what it does, keeps the output for the case that it fails, and tells the time.
step() {
  local title=$1 begin=$SECONDS status=0
  shift
  if [ -n "$dry" ]; then say "would run: $*"; return 0; fi
  say "$title ..."
  # The ticker holds neither the lock (9) nor a pipe of the caller while it sleeps.
  (exec 9>&-; while sleep 30 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do say "  $((SECONDS - begin)) s"; done) &
  ticker=$!
  "$@" >>"$log" 2>&1 || status=$?
  stop_ticker
  if [ "$status" -eq 0 ]; then say "  done in $((SECONDS - begin)) s"; fi
  return "$status"
}

must() {
  if step "$@"; then return; fi
  shift
  say "failed: $*"
  say "the last lines of $log:"
  tail -n 20 -- "$log" >&2
  die "the environment is not finished; the next call starts it again"
}

pip_install() { "$venv/bin/python" -m pip --disable-pip-version-check --no-input install --no-user "$@"; }

# One set-up at a time. The lock belongs to the open file 9, so it goes with the process, however that ends.
take_lock() {
  mkdir -p -- "$(dirname -- "$venv")"
  exec 9>>"$venv.lock"
  if ! "$1" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)' 2>/dev/null; then
    say "another set-up of $venv is at work; waiting for it"
    "$1" -c 'import fcntl; fcntl.flock(9, fcntl.LOCK_EX)'
  fi
}

# An environment that cannot be repaired in place: interrupted, made for another folder, or without its Python.
start_again() {
  if [ ! -e "$venv" ]; then return 0; fi
  if [ -f "$building" ] || { [ -f "$stamp" ] && [ "$(head -n 1 -- "$stamp")" != "root $root" ]; }; then
    say "$venv is unfinished or was made for another folder: starting it again"
  elif [ ! -x "$venv/bin/python" ] && [ -f "$venv/pyvenv.cfg" ]; then
    say "the Python of $venv is gone: starting it again"
  elif [ ! -x "$venv/bin/python" ] && [ -n "$(ls -A -- "$venv")" ]; then
    die "$venv is not a virtual environment; move it away or set GS_VENV to another folder"
  else
    return 0
  fi
  if [ -n "$dry" ]; then say "would remove $venv"; else rm -rf -- "$venv"; fi
}

begin_work() {
  if [ -n "$dry" ]; then return 0; fi
  mkdir -p -- "$venv"
  : >"$building"
  : >"$log"
  rm -f -- "$stamp"
}

setup() {
  local python=$1 started=$SECONDS
  start_again
  if [ ! -x "$venv/bin/python" ]; then
    say "virtual environment in $venv with $python, $("$python" --version 2>&1)"
    begin_work
    must "creating it" "$python" -m venv "$venv"
  else
    "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
      die "the Python of $venv is older than 3.11; move it away or set GS_VENV to another folder"
    say "requirements or package metadata changed: bringing $venv up to date"
    begin_work
  fi
  must "installing what requirements.lock pins (minutes the first time)" pip_install -r "$root/requirements.lock"
  if ! step "installing what has to be compiled (reasoning-gym)" pip_install -r "$root/requirements-compiled.lock"; then
    if [ -n "${GS_STRICT:-}" ]; then tail -n 20 -- "$log" >&2; die "requirements-compiled.lock does not install"; fi
    say "  left out: it needs a C compiler and Python's headers. All but the tasks rg:NAME works without"
  fi
  must "installing gainstage itself, editable" pip_install --no-build-isolation --no-deps -e "$root"
  if [ -n "$dry" ]; then return 0; fi
  ingredients >"$stamp.tmp"
  mv -- "$stamp.tmp" "$stamp"
  rm -f -- "$building"
  say "environment ready after $((SECONDS - started)) s"
}

run() {
  if [ -n "$dry" ]; then say "would run: $*"; exit 0; fi
  exec "$@"
}

lint() {
  local status=0 line
  for line in "ruff check ." "ruff format --check ." "mypy" "lint-imports --no-cache"; do
    say "$line"
    # shellcheck disable=SC2086  # the words of the line are the arguments
    [ -n "$dry" ] || "$venv"/bin/$line || status=1
  done
  exit "$status"
}

for file in requirements.lock requirements-compiled.lock pyproject.toml; do
  [ -f "$root/$file" ] || die "$root/$file is missing: is this a whole clone?"
done
if ! up_to_date; then
  python=$(find_python) || exit 1
  if [ -n "$dry" ]; then
    setup "$python"
  else
    take_lock "$python"
    if ! up_to_date; then setup "$python"; fi
    exec 9>&-
  fi
fi

case ${1-} in
  setup) say "the environment is in $venv" ;;
  python) shift; run "$venv/bin/python" "$@" ;;
  lint) cd -- "$root"; lint ;;
  test) shift; cd -- "$root"; run "$venv/bin/python" -m pytest "$@" ;;
  *) run "$venv/bin/gainstage" "$@" ;;
esac
