#!/usr/bin/env bash
# Runs the parts of `make nightly` or `make weekly`, each a make target, and notes which of them are green at this state
# of the sources, so that a run goes on where it was stopped or failed.
# usage: scripts/parts.sh nightly|weekly MAKE_TARGET... [-- MAKE_TARGET...]
#   before --: the parts that there are; those with a stamp are left out. After it: parts to run, stamp or not.
#   BESIDE="PART...": parts that only compute. They run beside the others, one by one, when the cores have nothing else
#   to do (SCHED_IDLE). LAST="PART...": parts that run after all these.
# A part has failed if its target fails, or if it leaves something behind (scripts/left_behind.sh). Others run
# nevertheless. Stamps and logs: target/nightly/SOURCES, and SOURCES-CHANGES for a changed tree.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/beside.sh
name=$1
shift

parts=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do parts+=("$1"); shift; done
[ $# -eq 0 ] || shift
for part in "$@"; do
  [[ " ${parts[*]} " = *" $part "* ]] || { echo "$name: no part called $part; there are ${parts[*]}" >&2; exit 2; }
done

# As root in somebody else's checkout git would refuse.
git() { command git -c safe.directory='*' "$@"; }
# Texts for readers change no part: a commit that notes what a run showed keeps its stamps.
sources=(. ':(exclude)*.md')
state=$(git ls-tree -r HEAD | grep -v '\.md$' | sha1sum | cut -c 1-12)
changes=$(git status --porcelain -- "${sources[@]}" && git diff HEAD -- "${sources[@]}")
[ -z "$changes" ] || state=$state-$(sha1sum <<<"$changes" | cut -c 1-8)
folder=${CARGO_TARGET_DIR:-target}/$name/$state
mkdir -p "$folder"

# is_wanted PART: it was asked for, or has no stamp
is_wanted() {
  if [ ${#asked[@]} -gt 0 ]; then
    [[ " ${asked[*]} " = *" $1 "* ]]
  elif [ -e "$folder/$1" ]; then
    echo "$name: $1: green before, $(cat "$folder/$1")"
    return 1
  fi
}

# run PART: runs it, and what it leaves behind is a failure
run() {
  local part=$1 at=$SECONDS code=0 took
  rm -f "$folder/$part"
  echo "$name: $part: runs, log in $folder/$part.log"
  [ -n "${IS_BESIDE:-}" ] || scripts/left_behind.sh note "$folder/before"
  make --no-print-directory "$part" PARTS= >"$folder/$part.log" 2>&1 8>&- || code=$?
  [ -n "${IS_BESIDE:-}" ] || scripts/left_behind.sh compare "$folder/before" >>"$folder/$part.log" 2>&1 || code=1
  took="$((SECONDS - at)) s"
  if [ $code = 0 ]; then
    echo "$took" >"$folder/$part"
    echo "$name: $part: green, $took"
  else
    failed+=("$part")
    tail -n 40 "$folder/$part.log"
    echo "$name: $part: FAILED after $took, see $folder/$part.log"
  fi
}

asked=("$@")
failed=()
begin=$SECONDS
beside=()
alone=()
last=()
for part in "${parts[@]}"; do
  is_wanted "$part" || continue
  case " ${BESIDE:-} | ${LAST:-} " in
    *" $part "*"|"*) beside+=("$part") ;;
    *"|"*" $part "*) last+=("$part") ;;
    *) alone+=("$part") ;;
  esac
done

# Another run would share logs, stamps and folders.
exec 8>"$folder/lock"
flock -n 8 || { echo "$name: another run is under way at this state" >&2; exit 1; }

lane=
trap 'beside_stop "$lane"' EXIT
trap 'exit 130' INT TERM
if [ ${#beside[@]} -gt 0 ]; then
  for part in "${beside[@]}"; do rm -f "$folder/$part"; done
  # The pinned toolchain is there before two ask for it.
  cargo --version >/dev/null
  beside_prepare
  scripts/left_behind.sh note "$folder/first"
  # A process group of its own, which ends with this script.
  set -m
  (
    exec 8>&-
    IS_BESIDE=1
    beside_enter
    for part in "${beside[@]}"; do run "$part"; done
    [ ${#failed[@]} = 0 ] || exit 1
  ) &
  lane=$!
  set +m
fi
for part in "${alone[@]}"; do run "$part"; done
if [ -n "$lane" ]; then
  code=0
  wait "$lane" || code=$?
  lane=
  # Its own list of failures has gone with it; stamps say the same.
  for part in "${beside[@]}"; do [ -e "$folder/$part" ] || failed+=("$part"); done
  [ $code = 0 ] || [ ${#failed[@]} -gt 0 ] || failed+=("beside")
  if ! WITH_IDLE=1 scripts/left_behind.sh compare "$folder/first"; then
    failed+=("${beside[@]}")
    for part in "${beside[@]}"; do rm -f "$folder/$part"; done
  fi
fi
for part in "${last[@]}"; do run "$part"; done
echo "$name: $((SECONDS - begin)) s at $state"
if [ ${#failed[@]} -gt 0 ]; then
  echo "$name: FAILED: ${failed[*]}" >&2
  exit 1
fi
missing=()
for part in "${parts[@]}"; do [ -e "$folder/$part" ] || missing+=("$part"); done
if [ ${#missing[@]} -gt 0 ]; then echo "$name: not yet run at $state: ${missing[*]}"; else echo "$name: all green at $state"; fi
