"""Runs the pipeline every quarter of an hour, then checks the tables.

`toril` runs in an environment of its own: TORIL is the path of the program there. A run with nothing new ends within a
second. The exit code decides: 0 is success, 1 a fault, after which Airflow tries again or reports it.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, task

with DAG(
    "toril_pipeline",
    schedule="*/15 * * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=20)},
):
    # The last line of the output is handed to the tasks that follow: the JSON object is put on one line.
    run = BashOperator(
        task_id="run",
        bash_command='"$TORIL" pipeline run --lake "$LAKE" --json > "$LAKE.json" && tr -d "\\n" < "$LAKE.json"',
    )
    check = BashOperator(task_id="check", bash_command='"$TORIL" pipeline check --lake "$LAKE" --json')

    @task
    def report(summary: str) -> int:
        """Your notification: here it prints the number of events."""
        events = int(json.loads(summary)["events"])
        print(f"events={events}")
        return events

    report(run.output) >> check
