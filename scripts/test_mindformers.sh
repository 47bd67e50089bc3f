#!/usr/bin/env bash
# Run the tests of the MindFormers plugin, in an environment of their own: MindFormers needs another MindSpore.
#   bash scripts/test_mindformers.sh                     everything
#   bash scripts/test_mindformers.sh -m "not slow"       without starting jobs
set -euo pipefail
export VENV=${VENV_MINDFORMERS:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv-mindformers}
export EXTRAS=mindformers,files,test
source "$(dirname "$0")/environment.sh"

export OMP_NUM_THREADS=1 GLOG_v=${GLOG_v:-3}
cd tests_mindformers # MindFormers leaves its logs where it runs
exec python -m pytest -c ../pyproject.toml --rootdir .. -o addopts="-q --strict-markers" -n 2 --dist loadfile . "$@"
