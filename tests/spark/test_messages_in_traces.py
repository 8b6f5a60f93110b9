"""The message of an error is found in its stack trace, as Node and Python themselves write it."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toril.errors import PermanentError, TransientError
from toril.protocol.outcome import reason_of
from toril.protocol.stack_trace import NOTES, stack_of
from toril.spark.pipeline.silver.stack_traces import Sample, message_of

# --- Node --------------------------------------------------------------------------------------------------------

FRAME = "    at work (app.js:1:2)"
MESSAGES = [
    "busy",
    "",
    "ends with a line break\n",
    "the machine\n    at the bottom\nis hot",
    "the machine\n    at the bottom",
    f"the other side said: Error: no\n{FRAME}\n{FRAME}\nand was gone",
    f"{FRAME}\nand more",
    "TypeError: wrapped",
    "ServiceBusy",
    "Traceback (most recent call last):\n  no",
    "a\r\nb\u2028c",
    f"{NOTES}\nno",
]
NODE = """
import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
const require = createRequire(process.cwd() + '/');
const { UnrecoverableError } = require('bullmq');
class Busy extends Error { constructor(text) { super(text); this.name = 'Busy'; } }
class Named extends Error {}
Named.prototype.name = 'My Service Error';
const thrown = [];
const keep = error => thrown.push([error.message, error.stack]);
const messages = JSON.parse(process.argv[1]);
for (const kind of [Error, TypeError, Busy, Named, UnrecoverableError])
  for (const message of messages) keep(new kind(message));
for (const message of messages) {
  try { [1].map(() => { throw new Error(message); }); } catch (error) { keep(error); }
  try { eval('throw new Error(message)'); } catch (error) { keep(error); }
  try {
    await Promise.all([(async () => { await null; throw new Error(message); })()]);
  } catch (error) { keep(error); }
}
writeFileSync(process.argv[2], 'syntax error\\n');
for (const fails of [
  () => new URL('x'), () => JSON.parse('{'), () => require('node:assert').deepEqual({ a: 1 }, { a: 2 }),
  () => require(process.argv[2]), () => Buffer.alloc(-1), () => AbortSignal.abort().throwIfAborted(),
  () => { throw new AggregateError([new Error('one')], 'many'); }, () => null.field,
  () => structuredClone(() => 1), () => new WebAssembly.Module(Buffer.from([1])),
]) try { fails(); } catch (error) { keep(error); }
for (const fails of [
  () => require('node:fs/promises').readFile('/nothing/here'), () => fetch('http://127.0.0.1:1'),
]) try { await fails(); } catch (error) { keep(error); }
Error.stackTraceLimit = 0;
for (const message of ['busy', '', 'no\\nframes']) keep(new Error(message));
console.log(JSON.stringify(thrown));
"""
NODE_FOLDER = Path(__file__).parents[1] / "interop" / "node"


def test_the_message_is_what_node_says_it_is(tmp_path: Path) -> None:
    program = [shutil.which("node") or "node", "--input-type=module", "-e", NODE]
    given = [json.dumps(MESSAGES), str(tmp_path / "broken.cjs")]
    said = subprocess.run([*program, *given], cwd=NODE_FOLDER, check=True, stdout=subprocess.PIPE)
    thrown = json.loads(said.stdout)
    assert len(thrown) == 8 * len(MESSAGES) + 15
    assert [(message_of(stack), stack) for _, stack in thrown] == thrown_pairs(thrown)


def thrown_pairs(thrown: list[list[str]]) -> list[tuple[str, str]]:
    return [(message, stack) for message, stack in thrown]


def test_a_message_that_ends_like_a_frame_is_found_by_another_trace_of_the_job() -> None:
    """Nothing in the trace tells where the frames begin; the job's last reason does."""
    frames = "    at handle (worker.js:7:9)\n    at async Worker.run (node_modules/bullmq/worker.js:1:1)"
    messages = [f"attempt {n}: Error: no\n{FRAME}" for n in range(3)]
    traces = [f"Error: {message}\n{frames}" for message in messages]
    sample = Sample.of(traces[-1], messages[-1])
    assert [message_of(trace, sample) for trace in traces] == messages
    assert message_of("Error: other\n    at elsewhere (worker.js:1:1)", sample) == "other"


def test_a_trace_that_reads_well_teaches_nothing() -> None:
    """An error that was thrown deeper ends with the same frames; its first frames are no part of its message."""
    last = "    at handle (worker.js:7:9)"
    assert Sample.of(f"Error: busy\n{last}", "busy") is None
    assert Sample.of(f"Error: busy\n{last}", "of another attempt") is None
    assert Sample.of("", "busy") is None
    assert Sample.of("Error: busy", None) is None


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        ("no error at all", "no error at all"),
        ("", ""),
        ("Error: slow\n    at a (a.js:1:1)\nFrom previous event:\n    at b (b.js:1:1)", "slow"),
        ("Error: mapped\n    at a (a.js:1:1)\n        -> a.ts:3:4\n    at b (b.js:1:1)", "mapped"),
        ("TypeError [ERR_INVALID_URL]: Invalid URL\nof a page\n    at main.js:1:1", "Invalid URL\nof a page"),
        ("Traceback (most recent call last):", "Traceback (most recent call last):"),
    ],
)
def test_other_traces_of_javascript(trace: str, message: str) -> None:
    assert message_of(trace) == message


# --- Python ------------------------------------------------------------------------------------------------------


class Busy(TransientError):
    """An error of a user."""


def noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


def chained(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = raised(cause)
    return error


def raised(error: Exception) -> Exception:
    with pytest.raises(type(error)) as caught:
        raise error
    return caught.value


def with_trace(error: Exception) -> Exception:
    """A usual way to keep an error: its trace becomes the message of another one."""
    return RuntimeError(f"failed: {''.join(traceback.format_exception(raised(error)))}")


def unreadable_code() -> Exception:
    with pytest.raises(SyntaxError) as caught:
        ast.literal_eval("[1, ")
    return caught.value


GROUP = [ValueError("a"), noted(ValueError("b"), "of b")]
ERRORS: list[Callable[[], Exception]] = [
    *(lambda text=text: ValueError(text) for text in MESSAGES),
    *(lambda text=text: noted(Busy(text), "one", "two\nlines") for text in MESSAGES),
    lambda: noted(ValueError(f"odd\n{NOTES}\nmessage"), f"odd\n{NOTES}\nnote"),
    lambda: noted(ValueError(), "no message"),
    lambda: noted(KeyError("name"), "the name is missing"),
    lambda: chained(noted(ValueError("after"), "of it"), noted(OSError("before"), "of its cause")),
    lambda: chained(PermanentError("after a group"), ExceptionGroup("both", GROUP)),
    lambda: noted(ExceptionGroup("both", GROUP), "of the group"),
    lambda: chained(ExceptionGroup("both", GROUP), ValueError("before")),
    lambda: with_trace(noted(ValueError("inner"), "a note")),
    lambda: chained(with_trace(ValueError("inner")), OSError("cause")),
    unreadable_code,
    lambda: noted(SyntaxError("without a place"), "note"),
    lambda: noted(ValueError("many notes"), *("long " * 900 for _ in range(150))),
    lambda: chained(ValueError("long"), chained(ValueError("x" * 9000), ValueError("y\n" * 9000))),
]


@pytest.mark.parametrize("make", ERRORS)
def test_the_message_is_what_the_worker_stores_as_the_reason(make: Callable[[], Exception]) -> None:
    error = raised(make())
    assert message_of(stack_of(error)) == reason_of(error)
    error.__traceback__ = None  # as an error that toril itself raises
    assert message_of(stack_of(error)) == reason_of(error)


def test_a_group_whose_message_was_cut_off_has_none() -> None:
    error = raised(ExceptionGroup("lost", [raised(ValueError(f"{n}" * 4000)) for n in range(9)]))
    assert "lost" not in stack_of(error)
    assert message_of(stack_of(error)) is None


def test_a_message_that_may_end_before_a_cause_stays_unknown() -> None:
    """The trace in the message has a cause of its own: it reads like a cause of the error and the error."""
    error = raised(with_trace(chained(ValueError("inner"), KeyError("cause"))))
    assert message_of(stack_of(error)) is None


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("NameError: name 'jsn' is not defined. Did you mean: 'json'?", "name 'jsn' is not defined"),
        (
            "NameError: name 'sys' is not defined. Did you forget to import 'sys'?",
            "name 'sys' is not defined",
        ),
        ("ValueError: unknown. Did you mean: 'json'?", "unknown. Did you mean: 'json'?"),
    ],
)
def test_what_newer_pythons_suggest_is_no_part_of_the_message(said: str, message: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    jsn\n{said}\n'
    assert message_of(trace) == message


def test_notes_without_a_heading_are_known_by_the_last_reason() -> None:
    def trace(n: int) -> str:
        return "".join(
            traceback.format_exception(raised(noted(ValueError(f"error {n}"), "always\nthe same")))
        )

    sample: Any = Sample.of(trace(2), "error 2")
    assert [message_of(trace(n), sample) for n in range(3)] == ["error 0", "error 1", "error 2"]
