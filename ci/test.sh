#!/usr/bin/env bash
# Builds the tests of all packages in one build and runs their programs, two more at a time than there are cores, since many mostly wait; then
# the doctests. The output of a program comes at once when it has ended. With TESTS=brief, `processes` and `schedules` try fewer of each
# kind, and `processes` runs three times at the same time, each time over some of its providers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "${1:-}" = --program ]; then
  name=$2 folder=$3 program=$4 status=0
  # Not for all: programs that the others start warn of a variable that they do not know.
  case $name in
    processes:*) export UNISONO_TEST_BRIEF=1 UNISONO_TEST_PROVIDERS=${name#*:} ;;
    schedules:brief) export UNISONO_TEST_BRIEF=1 ;;
  esac
  # Its tests mostly wait for the processes that they start, and would take longer than all others.
  if [ "$name" = command_line ]; then export RUST_TEST_THREADS=$((2 * $(nproc))); fi
  # Where `cargo test` runs it. `nohup` and shells that start jobs in the background ignore signals that tests send.
  said=$(cd "$folder" && env --default-signal "$program" --show-output 2>&1) || status=$?
  printf '== unisono%s: %s\n%s\n' "${folder#"$PWD"}" "$name" "$said"
  [ $status = 0 ] || echo "$name: status $status: FAILED"
  exit $status
fi

messages=$(cargo test --workspace --no-run --message-format=json-render-diagnostics)
programs=$(sed -nE 's/.*"manifest_path":"([^"]*)\/Cargo.toml".*"name":"([^"]*)","src_path".*"test":true\},"features".*"executable":"([^"]*)".*/\2\t\1\t\3/p' <<<"$messages")
[ -n "$programs" ] || { echo "test: cargo built no tests" >&2; exit 1; }
if [ "${TESTS:-}" = brief ]; then
  programs=$(sed -E 's/^schedules\t/schedules:brief\t/; s/^processes\t(.*)/processes:mux\t\1\nprocesses:tcp\t\1\nprocesses:shm,default\t\1/' <<<"$programs")
fi
status=0
# What takes longest begins first.
awk -F '\t' '{ print ($1 ~ /^processes/ ? 0 : $1 ~ /^(command_line|library)$/ ? 1 : 2) "\t" $0 }' <<<"$programs" | sort -n -s -k 1,1 |
  cut -f 2- | tr '\t\n' '\0\0' | xargs -0 -n 3 -P $(($(nproc) + 2)) ci/test.sh --program || status=1
cargo test --workspace --doc || status=1
exit $status
