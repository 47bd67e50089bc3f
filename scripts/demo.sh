#!/usr/bin/env bash
# Train a small multimodal model three ways on this machine, compare losses and step times, show why.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
exec python scripts/demo.py "$@"
