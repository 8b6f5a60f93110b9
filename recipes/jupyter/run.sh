#!/usr/bin/env bash
# Runs the notebook from the beginning to the end; a cell that raises ends it with an error.
set -euo pipefail
"$TORIL" pipeline run --lake "$LAKE"
"$TORIL" pipeline views --lake "$LAKE" --duckdb "$WORK/lake.duckdb" --spark "$WORK/lake-views.sql"
export LAKE_DUCKDB=$WORK/lake.duckdb
jupyter execute attempts.ipynb --output="$WORK/attempts-run.ipynb"
