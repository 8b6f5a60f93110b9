#!/usr/bin/env bash
# One run of the DAG, without a scheduler.
set -euo pipefail
export AIRFLOW_HOME=$WORK/airflow AIRFLOW__CORE__DAGS_FOLDER=$PWD/dags AIRFLOW__CORE__LOAD_EXAMPLES=False
airflow db migrate
airflow dags test toril_pipeline
