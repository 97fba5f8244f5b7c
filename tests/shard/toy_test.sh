#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the example alone and on four ranks: toy_test.sh RUN_RANKS MPIRUN PROGRAM
set -euo pipefail
run_ranks=$1 mpirun=$2 program=$3

check() { # TEXT: the loss at the end is below that at the start, and memory was promised
  local first last
  first=$(grep -o 'step 10, loss [0-9.]*' <<<"$1" | grep -o '[0-9.]*$')
  last=$(grep -o 'step 50, loss [0-9.]*' <<<"$1" | grep -o '[0-9.]*$')
  grep -q "$2 ranks, at rest [0-9]* bytes, at peak [0-9]* bytes" <<<"$1"
  awk -v first="$first" -v last="$last" 'BEGIN { exit !(last > 0 && last < first) }'
}

check "$("$program")" 1
check "$("$run_ranks" "$mpirun" 4 "$program")" 4
