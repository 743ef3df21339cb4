#!/usr/bin/env bash
# Runs the parts of `make nightly` or `make weekly`, each a make target, and notes which of them are green at this state
# of the sources, so that a run goes on where it was stopped or failed.
# usage: scripts/parts.sh nightly|weekly MAKE_TARGET... [-- MAKE_TARGET...]
#   before --: the parts that there are; those with a stamp are left out. After it: parts to run, stamp or not.
# A part has failed if its target fails, or if it leaves something behind (scripts/left_behind.sh). Others run
# nevertheless. Stamps and logs: target/nightly/SOURCES, and SOURCES-CHANGES for a changed tree.
set -euo pipefail
cd "$(dirname "$0")/.."
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

failed=()
begin=$SECONDS
for part in "${parts[@]}"; do
  stamp=$folder/$part
  if [ $# -gt 0 ]; then
    [[ " $* " = *" $part "* ]] || continue
  elif [ -e "$stamp" ]; then
    echo "$name: $part: green before, $(cat "$stamp")"
    continue
  fi
  rm -f "$stamp"
  echo "$name: $part: runs, log in $folder/$part.log"
  at=$SECONDS
  scripts/left_behind.sh note "$folder/before"
  code=0
  make --no-print-directory "$part" PARTS= >"$folder/$part.log" 2>&1 || code=$?
  scripts/left_behind.sh compare "$folder/before" >>"$folder/$part.log" 2>&1 || code=1
  took="$((SECONDS - at)) s"
  if [ $code = 0 ]; then
    echo "$took" >"$stamp"
    echo "$name: $part: green, $took"
  else
    failed+=("$part")
    tail -n 40 "$folder/$part.log"
    echo "$name: $part: FAILED after $took, see $folder/$part.log"
  fi
done
echo "$name: $((SECONDS - begin)) s at $state"
if [ ${#failed[@]} -gt 0 ]; then
  echo "$name: FAILED: ${failed[*]}" >&2
  exit 1
fi
missing=()
for part in "${parts[@]}"; do [ -e "$folder/$part" ] || missing+=("$part"); done
if [ ${#missing[@]} -gt 0 ]; then echo "$name: not yet run at $state: ${missing[*]}"; else echo "$name: all green at $state"; fi
