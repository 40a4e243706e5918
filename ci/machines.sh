#!/usr/bin/env bash
# Runs the short suite on every machine of ci/machines/table, two at a time: emulated ones, and roots of other releases of Debian.
#
#   ci/machines.sh [NAME...]      only those rows whose name contains one of these
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# One row, whose output comes at once when it has ended.
row() { # ROW
  local name how inside providers doctor before status=0
  IFS='|' read -r name how inside providers doctor before <<<"$(sed 's/ *| */|/g' <<<"$1")"
  local suite=(ci/machines/suite.sh "$unisono" "$processes" "$inside" "$providers" "$doctor")
  local begun=$SECONDS said
  read -ra how <<<"$how"
  said=$(case ${how[0]} in
    vm) ci/machines/vm.sh -s "${how[@]:1}" . "${suite[@]}" ;;
    debian) ci/fresh.sh -s "${how[1]}" -p "${suite[@]}" ;;
    wheel) ci/fresh.sh -s "${how[1]}" -w "$wheel" python/tests/test_collectives.py ;;
    *) echo "the table has no kind '${how[0]}'"; exit 1 ;;
  esac 2>&1) || status=$?
  echo "== machine '$name': ${how[*]}${inside:+, $inside}${before:+ (before: $before)}"
  echo "$said"
  if [ $status = 0 ]; then
    echo "ok       machine '$name' ($((SECONDS - begun)) s)"
  else
    echo "FAILED   machine '$name' ($((SECONDS - begun)) s): status $status"
  fi
  return $status
}
if [ "${1:-}" = --row ]; then
  row "$2"
  exit
fi

rows=()
while IFS= read -r line; do
  [[ $line != \#* && -n $line ]] || continue
  for wanted in "${@:-}"; do
    if [[ ${line%%|*} == *"$wanted"* ]]; then rows+=("$line"); break; fi
  done
done <ci/machines/table
[ ${#rows[@]} -gt 0 ] || { echo "test-machines: the table has no such machine: $*" >&2; exit 2; }
has() { printf '%s\n' "${rows[@]}" | grep -q "| $1 "; }
kinds=()
kind() { # KIND WHY-NOT
  if [ -z "$2" ]; then kinds+=("$1"); elif has "$1"; then echo "SKIPPED: test-machines, $1: $2"; fi
}
arch=
[ "$(uname -m)" = x86_64 ] || arch="the emulated machine is made for x86_64, this one is $(uname -m)"
user=
[ "$(id -u)" = 0 ] || user="only root can make roots and change to them"
kind vm "$arch"
kind debian "$user"
kind wheel "$user"
for at in "${!rows[@]}"; do
  how=$(cut -d '|' -f 2 <<<"${rows[at]}" | sed 's/^ *//;s/ .*//')
  [[ " ${kinds[*]} " == *" $how "* ]] || unset "rows[at]"
done
[ ${#rows[@]} -gt 0 ] || exit 0

needs=(build)
if has vm; then needs+=(machines); fi
if has 'debian\|wheel'; then needs+=(roots python); fi
ci/setup.sh "${needs[@]}"
processes=$(ci/test-binaries.sh processes)
# As users build it: what is written past its end harms other memory there than without optimization.
unisono=$(ci/built.sh unisono --release -p unisono-cli)
wheel=
if has wheel; then
  wheels=$(ci/target.sh)/machines
  ci/wheel.sh dev "$wheels"
  wheel=$(ls "$wheels"/*.whl)
fi
export processes unisono wheel
begun=$SECONDS status=0
printf '%s\0' "${rows[@]}" | xargs -0 -n 1 -P 2 ci/machines.sh --row || status=1
echo "test-machines: ${#rows[@]} machines in $((SECONDS - begun)) s"
exit $status
