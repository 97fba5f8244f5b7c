#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program on ranks of this machine: run_ranks.sh MPIRUN RANKS PROGRAM [ARGUMENTS]
# With `tcp` in the place of MPIRUN, without MPI: see tcp_ranks.py.
set -euo pipefail
mpirun=$1 ranks=$2
shift 2
if [ "$mpirun" = tcp ]; then
  exec python3 "$(dirname "$0")/tcp_ranks.py" "$ranks" "$@"
fi
if [ "$(id -u)" = 0 ]; then
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# To start ranks of this machine alone Open MPI needs no ssh, but it asks for one unless told so.
if ! command -v ssh > /dev/null; then
  export OMPI_MCA_plm=isolated
fi
# Nor does it need fabrics between machines, for which it looks for a second.
export OMPI_MCA_btl=${OMPI_MCA_btl:-^ofi}
# Several NCCL ranks share a GPU only if each calls itself another host; CPU ranks don't mind.
exec "$mpirun" -n "$ranks" --oversubscribe --bind-to none --tag-output \
  bash -c 'NCCL_HOSTID=rank$OMPI_COMM_WORLD_RANK exec "$@"' rank "$@"
