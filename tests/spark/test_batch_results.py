"""What handlers of batches return, as results and errors of their jobs; without Spark."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from toril.protocol.codec import to_json
from toril.spark.worker.batch_results import results_of


def texts(returned: object, ids: list[str]) -> list[str]:
    found = results_of(returned, ids, lambda value: to_json(value, field="result"))
    return [one.decode() if isinstance(one, bytes) else str(one) for one in found]


def test_ids_that_pandas_read_as_numbers_are_those_of_their_jobs() -> None:
    assert texts(pd.DataFrame({"job_id": [2, 1], "result": ["b", "a"]}), ["1", "2"]) == ['"a"', '"b"']


class Unreadable:
    ndim = 1

    def tolist(self) -> Any:
        raise LookupError("no values")


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (pd.DataFrame({"job_id": [["1"], {}], "result": [1, 2]}), "no row for this job, and 2 rows of other"),
        (pd.DataFrame([[1, 2]], columns=["job_id", "job_id"]), "cannot be read"),
        (Unreadable(), "LookupError: no values"),
        (iter([1, 2]), "a list_iterator"),
        ({"1": 1, "2": 2}, "a dict"),
    ],
)
def test_a_return_value_of_any_kind_is_an_error_of_each_job(returned: object, reason: str) -> None:
    found = texts(returned, ["1", "2"])
    assert len(found) == 2
    assert all(reason in one for one in found), found
