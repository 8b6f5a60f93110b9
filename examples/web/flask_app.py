"""Flask: blocking views and plain functions as tasks.

Run: flask --app examples.web.flask_app run, and in another terminal: flask --app examples.web.flask_app toril-worker
"""

from __future__ import annotations

from flask import Flask, Response, current_app, jsonify, request

from toril import App, sync
from toril.integrations.flask import Toril

app = App(name="flask-thumbnails")
web = Flask(__name__)
web.config["SUFFIX"] = "png"
toril = Toril(app, web)


@app.task(queue="thumbnails", attempts=3)
@toril.in_app_context
def make_thumbnails(ctx: sync.Context, name: str, sizes: int = 3) -> list[str]:
    """Makes some files, and reports how far it is."""
    made = []
    for size in range(1, sizes + 1):
        made.append(f"{name}-{size}.{current_app.config['SUFFIX']}")
        ctx.progress(100 * size // sizes)
    return made


@app.task(queue="thumbnails")
def fail(reason: str) -> None:
    """Fails."""
    raise ValueError(reason)


@web.post("/thumbnails")
def start() -> Response:
    call = make_thumbnails.bind(request.args["name"], sizes=int(request.args.get("sizes", 3)))
    return jsonify(job=toril.enqueue(call).id)


@web.post("/failures")
def start_failure() -> Response:
    return jsonify(job=toril.enqueue(fail.bind(request.args["reason"])).id)


@web.get("/jobs/<job_id>/events")
def follow(job_id: str) -> Response:
    return toril.job_events("thumbnails", job_id)


@web.get("/jobs/<job_id>")
def show(job_id: str) -> Response:
    job = toril.get_job("thumbnails", job_id)
    return jsonify(state=None if job is None else job.get_state())
