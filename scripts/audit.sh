#!/usr/bin/env bash
# Known vulnerabilities of what the images install, from their locks. Needs pip-audit on PATH and a network.
# A finding that cannot be fixed is listed in images/NAME/audit.ignore: one id per line, its reason after a #.
set -euo pipefail
cd "$(dirname "$0")/.."
worst=0
for lock in images/*/*.lock; do
  ignored=()
  list=$(dirname "$lock")/audit.ignore
  if [ -f "$list" ]; then
    while read -r id _; do
      case $id in "" | "#"*) ;; *) ignored+=(--ignore-vuln "$id") ;; esac
    done <"$list"
  fi
  echo "== $lock"
  pip-audit --strict --disable-pip --require-hashes --progress-spinner off "${ignored[@]}" -r "$lock" || worst=1
done
exit $worst
