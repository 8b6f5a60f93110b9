#!/usr/bin/env bash
# Brings the tables up to date, writes their views for DuckDB, and builds and tests the models.
set -euo pipefail
"$TORIL" pipeline run --lake "$LAKE"
"$TORIL" pipeline views --lake "$LAKE" --duckdb "$WORK/lake.duckdb" --spark "$WORK/lake-views.sql"
dbt build --profiles-dir . --target-path "$WORK/target" --log-path "$WORK/logs"
dbt show --profiles-dir . --target-path "$WORK/target" --log-path "$WORK/logs" --select queue_days
