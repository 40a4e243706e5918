#!/usr/bin/env bash
# Runs a command, shows what it prints, and names the ten slowest in the end, of what printed its time: cases of the suites of processes and
# transports, tests of Python, examples, and of Rust's other tests each program as a whole.
#
#   ci/slowest.sh COMMAND [ARGUMENT...]
set -euo pipefail
log=$(mktemp)
trap 'rm -f "$log"' EXIT
begun=$SECONDS status=0
"$@" 2>&1 | tee "$log" || status=$?
echo "the slowest, in seconds:"
sed -nE '
  /^== /{ s/^== //; h; }
  /^ +Doc-tests /{ s/^ +//; h; }
  s/^(ok|FAILED) +(.*) \(([0-9.]+) s\).*/\3 \2/p
  s/^SLOW +(.*) took ([0-9.]+) s$/\2 \1/p
  s/^([0-9.]+)s (call|setup|teardown) +(.*)/\1 \3/p
  /^test result: .*finished in [0-9.]+s$/{ s/.* ([0-9]+) passed.*finished in ([0-9.]+)s$/\2 \1 tests of/; G; s/\n/ /; p; }' "$log" |
  sort -rn | head -n 10 | awk '{ printf "%8.1f  %s\n", $1, substr($0, index($0, " ") + 1) }'
echo "all together: $((SECONDS - begun)) s"
exit $status
