#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A model larger than a rank may allocate can be trained, and can't be built whole:
#   large_test.sh RUN_RANKS MPIRUN LARGE_PROGRAM
set -euo pipefail
"$1" "$2" 1 "$3" whole | grep -F "too large"
"$1" "$2" 4 "$3" | grep -F "weights 384 MiB, limit 345 MiB, loss "
