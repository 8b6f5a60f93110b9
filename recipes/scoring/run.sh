#!/usr/bin/env bash
# Starts the web application and a worker on Spark, and asks for scores.
set -euo pipefail
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT
uvicorn web:web --port "$port" --log-level warning &
toril add inference score --data '{"features": [0, 0, 0, 0, 0, 0, 0, 0]}'  # a worker on Spark needs a queue that exists
toril worker model:score --queue inference --spark 'local[2,4]' --data-schema 'features array<double>' &
python - "$port" <<'PYTHON'
import socket, sys, time
while True:  # until the web application listens
    try:
        socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
        break
    except OSError:
        time.sleep(0.2)
PYTHON
python ask.py "http://127.0.0.1:$port"
