"""A job as code that adds it again: Python, Node and the command line.

Guarantee: values are quoted for their language, so that a hostile value stays a value.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from toril.commands.pages import PageValue
from toril.dashboard._rows import redacted_text, text_of
from toril.dashboard._sources import ShownQueue
from toril.dashboard._texts import visible
from toril.dashboard._view import View

# A longer payload is no text to paste.
_MOST_BYTES = 8 * 1024


def code_examples(queue: ShownQueue, fields: Mapping[str, PageValue], view: View) -> dict[str, str]:
    """Returns the name of a language → code that adds a job with the same name, data and options."""
    data = fields.get("data")
    if not isinstance(data, bytes) or len(data) > _MOST_BYTES:
        return {}
    name = text_of(fields.get("name"), "name")
    text = redacted_text(view, queue, "data", data)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    queue_name = queue.found.name
    body = json.dumps(value, ensure_ascii=True)
    python = f"async with Queue({queue_name!r}) as queue:\n    await queue.add({name!r}, {_python(value)})"
    node = f"const queue = new Queue({json.dumps(queue_name)});\nawait queue.add({json.dumps(name)}, {body});"
    command = shlex.join(["toril", "add", str(queue.found), name, "--data", body])
    return {"Python": visible(python), "Node": visible(node), "CLI": visible(command)}


def _python(value: object) -> str:
    return repr(value)
