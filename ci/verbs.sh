#!/usr/bin/env bash
# Runs the conformance suite, the choice of a NIC beside the network in which ranks meet, the collectives at 2 and 4
# ranks, messages, mismatches, little memory that may be locked, a rank that is killed, and a short checked bench over
# `verbs;ofi_rxm` on soft-RoCE, alone and beside shared memory, in the small emulated machine of ci/machines.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
if [ "$(uname -m)" != x86_64 ]; then
  echo "SKIPPED: test-verbs: the emulated machine is made for x86_64, this one is $(uname -m)"
  exit 0
fi
ci/setup.sh build machines
programs=$(ci/test-binaries.sh conformance choice processes)
{ read -r conformance; read -r choice; read -r processes; } <<<"$programs"
unisono=$(ci/built.sh unisono --release -p unisono-cli)

# rxe's completion queues hold 32767 entries and ofi_rxm sizes its own by the universe: its default, 256, is
# too many and ends in "Unable to create verbs CQ".
export FI_UNIVERSE_SIZE=32 UNISONO_TEST_PROVIDERS=verbs UNISONO_TEST_RANKS=2,4 UNISONO_TEST_BRIEF=1
echo "test-verbs: conformance"
UNISONO_TEST_PROVIDERS=verbs,mux+verbs-far-allocated ci/machines/vm.sh . "$conformance"
echo "test-verbs: conformance, beside shared memory"
UNISONO_TEST_PROVIDERS=mux+verbs-allocated ci/machines/vm.sh . "$conformance" mapped
echo "test-verbs: choice"
ci/machines/vm.sh . "$choice" ranks_that_meet_beside
for cases in collectives "messages, 2" "little memory"; do
  echo "test-verbs: processes, $cases"
  ci/machines/vm.sh . "$processes" "$cases"
done
# ofi_rxm may crash where a peer's connection ends (docs/decisions/046-soft-roce-drain.md), as it does after each of these: the
# rarer it looks for that, in microseconds, the rarer it does.
for cases in "mismatches, 2" "rank 2 is killed"; do
  echo "test-verbs: processes, $cases"
  FI_OFI_RXM_CM_PROGRESS_INTERVAL=200000 ci/machines/vm.sh . "$processes" "$cases"
done
echo "test-verbs: bench"
# shellcheck disable=SC2016
ci/machines/vm.sh . bash -euc '
  for collective in all_reduce reduce_scatter all_gather broadcast reduce gather scatter all_to_all; do
    "$0" bench "$collective" --ranks 3 --provider verbs -b 8 -e 1M -f 64 -n 3 -w 1
  done' "$unisono"
# As between hosts: ranks share memory with those of the same user, and reach those of another by verbs.
echo "test-verbs: bench, beside shared memory"
# shellcheck disable=SC2016
said=$(ci/machines/vm.sh . bash -euc '
  chmod a+rw /dev/infiniband/*
  export UNISONO_TOKEN=ranks-of-two-users UNISONO_PROVIDER=shm,verbs WORLD_SIZE=4 MASTER_ADDR=192.168.78.1 MASTER_PORT=29500
  for memory in "" --registered; do
    ranks=()
    for RANK in 0 1 2 3; do
      export RANK
      setpriv --reuid $((RANK / 2)) "$0" bench all_reduce $memory --no-raw -b 8 -e 512K -f 16 -n 3 -w 1 & ranks+=($!)
    done
    for rank in "${ranks[@]}"; do wait "$rank"; done
  done' "$unisono")
echo "$said"
[[ $said == *"over shm,verbs"* ]]
