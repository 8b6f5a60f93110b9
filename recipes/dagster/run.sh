#!/usr/bin/env bash
# Materializes the asset once, and runs its check.
set -euo pipefail
export DAGSTER_HOME=$WORK/dagster
mkdir -p "$DAGSTER_HOME"
dagster asset materialize --select '*' -f definitions.py
