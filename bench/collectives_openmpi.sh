#!/usr/bin/env bash
# Times OpenMPI's collectives between processes of this host: bench/collectives_openmpi.sh [RANKS [SECONDS [OP]]].
# Prints a line of JSON for each op and size. Needs Debian's openmpi-bin and libopenmpi-dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v mpicxx mpirun >/dev/null || {
  echo "collectives_openmpi: mpicxx or mpirun is missing; apt-get install openmpi-bin libopenmpi-dev" >&2
  exit 2
}
program=build/collectives_openmpi
mkdir -p build
[ "$program" -nt bench/collectives_openmpi.cc ] || mpicxx -O3 -std=c++17 bench/collectives_openmpi.cc -o "$program"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
exec mpirun -n "${1:-2}" --bind-to core --oversubscribe --mca btl self,vader "$program" "${2:-0.5}" "${3:-all}"
