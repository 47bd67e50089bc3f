#!/usr/bin/env bash
# Lint, check the format, run the tests. Makes the environment if it is missing.
#   bash scripts/test.sh                       everything
#   bash scripts/test.sh -m "not slow"         without starting msrun
#   bash scripts/test.sh tests/algebra -k fold one folder, one name
set -euo pipefail
source "$(dirname "$0")/environment.sh"

ruff check .
ruff format --check .
export OMP_NUM_THREADS=1 GLOG_v=${GLOG_v:-3}
exec python -m pytest "$@"
