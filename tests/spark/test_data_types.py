"""`data_schema` is read without a Java process."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType

from toril.errors import InvalidOption
from toril.spark.worker.data_types import data_type_of


def test_ddl_and_struct_types_give_the_same_type() -> None:
    wanted = pa.struct([("x", pa.int64()), ("tags", pa.list_(pa.string()))])
    schema = StructType([StructField("x", LongType()), StructField("tags", ArrayType(StringType()))])
    for given in ("x bigint, tags array<string>", "`x`: LONG, tags ARRAY<STRING>", schema, schema.json()):
        found = data_type_of(given)
        assert found is not None
        assert found.field("x").type == wanted.field("x").type
        assert found.field("tags").type.value_type == pa.string()


def test_types_can_be_nested() -> None:
    found = data_type_of("a struct<b: map<string, double>, c: boolean>, d int")
    assert found == pa.struct(
        [
            ("a", pa.struct([("b", pa.map_(pa.string(), pa.float64())), ("c", pa.bool_())])),
            ("d", pa.int32()),
        ]
    )


@pytest.mark.parametrize(
    "given",
    [
        "",
        "x",
        "x nonsense",
        "x array<int",
        "x array<int, int>",
        "x int,",
        "x int y int",
        "x int; drop",
        7,
        "{}",
    ],
)
def test_what_is_no_schema_is_refused_with_a_remedy(given: object) -> None:
    with pytest.raises(InvalidOption, match="data_schema: cannot be read"):
        data_type_of(given)
