"""One run, saved more than once: each row becomes one job, or the save is refused, however the rows are partitioned."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import toril.spark
from tests.servers import Server
from toril.commands.add import JobToAdd
from toril.commands.bulk_enqueue import Admission, Admitted, KnownDifferently, Moved, Row, enqueue_once
from toril.errors import QueueStaysFull
from toril.protocol.keys import ListKeys, QueueKeys, StreamKeys
from toril.spark.sinks._rows import RowReader
from toril.spark.sinks._sender import Sender, Tally
from toril.spark.sinks.identity import Identifier
from toril.spark.sinks.options import SinkOptions
from toril.transport import BlockingTransport

ROWS = 300


@pytest.fixture
def client(valkey: Server) -> Iterator[Any]:
    with valkey.client() as client:
        yield client


def rows_in(spark: SparkSession, partitions: int, count: int = ROWS) -> DataFrame:
    """Every content three times, in so many partitions; maps in one order or the other."""
    rows = spark.range(0, count, 1, 1).select(
        F.lit("send").alias("name"),
        F.struct(
            (F.col("id") % (count // 3)).alias("n"), F.timestamp_millis(F.col("id") % 3).alias("at")
        ).alias("data"),
    )
    return rows.repartition(partitions)


def write(frame: DataFrame, url: str, prefix: str, **options: Any) -> None:
    frame.write.format("toril").options(**{"url": url, "prefix": prefix, **options}).mode("append").save()


@pytest.mark.parametrize("key", ["n", "data.n", "job_id"])
def test_rows_with_a_key_are_the_same_in_every_partitioning(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, key: str
) -> None:
    rows = spark.range(0, ROWS, 1, 1).select(
        F.lit("send").alias("name"),
        F.struct(F.col("id").alias("n"), F.rand().alias("luck")).alias("data"),
        F.col("id").alias("n"),
    )
    if key == "job_id":
        rows = rows.select("name", "data", F.concat(F.lit("row-"), "n").alias("job_id"))
    options = {} if key == "job_id" else {"key": key}
    rows = rows if key == "n" else rows.drop("n")
    for partitions in (2, 3, 7):
        write(rows.repartition(partitions), valkey_url, prefix, queue="keyed", run="r", **options)
    assert client.llen(QueueKeys("keyed", prefix).wait) == ROWS


def test_enqueue_counts_equal_rows_over_all_partitions(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    keys = QueueKeys("counted", prefix)
    for partitions in (2, 3, 7):
        toril.spark.enqueue(rows_in(spark, partitions), "counted", run="r", url=valkey_url, prefix=prefix)
    jobs = client.lrange(keys.wait, 0, -1)
    assert len(jobs) == len(set(jobs)) == ROWS
    data = [json.loads(client.hget(keys.job(one.decode()), "data")) for one in jobs]
    assert set(data[0]) == {"n", "at"}, "the column of the shuffle is not in the data"
    assert Counter(one["n"] for one in data) == dict.fromkeys(range(ROWS // 3), 3)


def test_enqueue_knows_a_row_by_its_values_not_by_their_order_or_the_time_zone(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    moment = "timestamp_millis(1000) as timestamp"
    first = f"""select 'x' as name, map('a', map(1, 2, 3, 4), 'b', map()) as data, 'q' as queue, {moment}
                union all select 'y', map(), 'q', null union all select 'y', null, 'q', null"""
    again = f"""select 'q' as queue, map('b', map(), 'a', map(3, 4, 1, 2)) as data, {moment}, 'x' as name
                union all select 'q', null, null, 'y' union all select 'q', map(), null, 'y'"""
    for sql, zone in ((first, "UTC"), (again, "Asia/Tokyo")):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            toril.spark.enqueue(spark.sql(sql), run="r", url=valkey_url, prefix=prefix)
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert client.llen(QueueKeys("q", prefix).wait) == 3


def test_a_second_save_in_other_partitions_is_refused_before_it_adds(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    keys = QueueKeys("refused", prefix)
    write(rows_in(spark, 2), valkey_url, prefix, queue="refused", run="r")
    for partitions in (3, 7):
        with pytest.raises(
            Exception, match=r'run \'r\': a row of partition .* option\("key", .*toril\.spark\.enqueue'
        ):
            write(rows_in(spark, partitions), valkey_url, prefix, queue="refused", run="r")
        assert client.llen(keys.wait) == ROWS
    write(rows_in(spark, 2), valkey_url, prefix, queue="refused", run="r")
    assert client.llen(keys.wait) == ROWS, "the save as it was first made is known"


def test_a_run_that_knows_its_rows_in_one_way_refuses_another(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any
) -> None:
    rows = rows_in(spark, 2, 30)
    write(rows, valkey_url, prefix, queue="ways", run="r")
    with pytest.raises(Exception, match=r"it knows its rows by content and this save by key data\.n"):
        write(rows, valkey_url, prefix, queue="ways", run="r", key="data.n")
    with pytest.raises(Exception, match="by content and this save by counted content"):
        toril.spark.enqueue(rows, "ways", run="r", url=valkey_url, prefix=prefix)
    assert client.llen(QueueKeys("ways", prefix).wait) == 30


@pytest.mark.parametrize("how", ["enqueue", "plain"])
def test_a_replayed_foreach_batch_with_another_number_of_partitions_adds_no_job_twice(
    spark: SparkSession, valkey_url: str, prefix: str, client: Any, tmp_path: Path, how: str
) -> None:
    source, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"
    rows_in(spark, 2).write.parquet(str(source))

    def run(partitions: int) -> None:
        def save(batch: DataFrame, batch_id: int) -> None:
            words = {"queue": how, "run": f"stream-{batch_id}"}
            rows = batch.repartition(partitions)
            if how == "enqueue":
                toril.spark.enqueue(rows, url=valkey_url, prefix=prefix, **words)
            else:
                write(rows, valkey_url, prefix, **words)

        schema = "name string, data struct<n: long, at: timestamp>"
        writer = spark.readStream.schema(schema).parquet(str(source)).writeStream.foreachBatch(save)
        query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    run(2)
    for commit in (checkpoint / "commits").glob("*[0-9]*"):
        commit.unlink()
    if how == "plain":
        with pytest.raises(Exception, match=r'option\("key"'):
            run(5)
    else:
        run(5)
    assert client.llen(QueueKeys(how, prefix).wait) == ROWS


def test_enqueue_of_a_stream_is_refused_with_the_way_to_do_it(spark: SparkSession) -> None:
    with pytest.raises(ValueError, match="call enqueue in foreachBatch"):
        toril.spark.enqueue(spark.readStream.format("rate").load(), "a", run="r")


# --- the ledger, against a model --------------------------------------------------------------------------------------


class Save:
    """One save of some contents in some layout, sent row by row as tasks would, and cut off at will."""

    def __init__(self, transport: BlockingTransport, keys: Any, number: int) -> None:
        self.transport, self.keys, self.number = transport, keys, number
        self.added: Counter[str] = Counter()

    def send(self, layout: dict[int, list[str]], chance: random.Random, stop_after: int) -> bool:
        """False when the save was refused."""
        options = SinkOptions(queue="model", prefix=self.keys.prefix)
        tasks = {place: Identifier(options, "r", place) for place in layout}
        left = {place: list(contents) for place, contents in layout.items()}
        while (open_tasks := [place for place in left if left[place]]) and stop_after > 0:
            place = chance.choice(open_tasks)
            portion = [left[place].pop(0) for _ in range(min(len(left[place]), chance.randint(1, 3)))]
            if not self._send(tasks[place], place, portion):
                return False
            stop_after -= 1
        return True

    def _send(self, task: Identifier, place: int, portion: list[str]) -> bool:
        known = [task.of({}, content.encode(), None) for content in portion]
        rows = [
            Row(
                one.digest,
                JobToAdd(name="n", data=content.encode(), options={}, timestamp=1, id=one.job_id),
                one.first,
            )
            for content, one in zip(portion, known, strict=True)
        ]
        admission = Admission(run="r", ledger_ms=60_000, save=str(self.number), partition=place)
        answer = self.transport.run(enqueue_once(self.keys, rows, admission))
        if isinstance(answer, Moved):
            return False
        assert isinstance(answer, Admitted)
        self.added.update(content for content, new in zip(portion, answer.rows, strict=True) if new is True)
        return True


def laid_out(contents: list[str], partitions: int, chance: random.Random) -> dict[int, list[str]]:
    layout: dict[int, list[str]] = {place: [] for place in range(partitions)}
    for content in contents:
        layout[chance.randrange(partitions)].append(content)
    return layout


@pytest.mark.parametrize("seed", range(8))
def test_no_series_of_saves_adds_more_jobs_than_there_are_rows(
    valkey_url: str, prefix: str, client: Any, seed: int
) -> None:
    """Saves in random layouts, cut off at random; and the first one, repeated in its own layout, is complete."""
    chance = random.Random(seed)
    contents = [f'"{chance.randrange(12)}"' for _ in range(30)]
    with BlockingTransport(valkey_url) as transport:
        for trial in range(12):
            keys = QueueKeys(f"model-{trial}", prefix)
            total: Counter[str] = Counter()
            layouts = [laid_out(contents, chance.randint(1, 5), chance) for _ in range(3)]
            stops = [chance.choice([2, 8, 1_000]) for _ in range(5)]
            for number, stop in enumerate(stops):
                save = Save(transport, keys, number)
                save.send(layouts[chance.choice([0, 0, 1, 2])], chance, stop)
                total += save.added
                assert total <= Counter(contents), (trial, number)
            ids = client.lrange(keys.wait, 0, -1)
            assert len(ids) == len(set(ids)) == total.total()


def test_a_save_that_is_repeated_in_its_own_partitions_is_completed(valkey_url: str, prefix: str) -> None:
    chance = random.Random(1)
    contents = [f'"{number}"' for number in range(40)]
    layout = {**laid_out(contents, 3, chance), 7: ['"a"'] * 5}
    with BlockingTransport(valkey_url) as transport:
        keys = QueueKeys("completed", prefix)
        saves = [Save(transport, keys, number) for number in range(3)]
        assert all(save.send(layout, chance, stop) for save, stop in zip(saves, (5, 9, 1_000), strict=True))
        assert sum((save.added for save in saves), Counter()) == Counter([*contents, *['"a"'] * 5])


def test_another_identity_of_rows_is_refused_by_the_server(valkey_url: str, prefix: str) -> None:
    keys = QueueKeys("otherwise", prefix)
    row = Row(b"d" * 16, JobToAdd(name="n", data=b"{}", options={}, timestamp=1, id="a"))
    with BlockingTransport(valkey_url) as transport:
        transport.run(enqueue_once(keys, [row], Admission(run="r", ledger_ms=60_000, known_by="key a")))
        answer = transport.run(enqueue_once(keys, [row], Admission(run="r", ledger_ms=60_000)))
    assert answer == KnownDifferently("key a")


# --- max_waiting ------------------------------------------------------------------------------------------------------


def jobs(kind: str, numbers: range, delay: float | None = None) -> list[Row]:
    """Rows as the sink reads them."""
    options = SinkOptions(queue="jobs.full", kind=kind, name="n")
    reader = RowReader(options, f"run-{numbers.start}", 0, now_ms=1_700_000_000_000)
    batch = pa.RecordBatch.from_pylist([{"n": number, "delay": delay} for number in numbers])
    return [one.row for one in reader.read(batch)]


def send(url: str, prefix: str, kind: str, rows: list[Row], most: int) -> Tally:
    options = SinkOptions(queue="jobs.full", prefix=prefix, kind=kind, max_waiting=most, wait_timeout=0.2)
    with BlockingTransport(url) as transport:
        sender = Sender(transport, options, Admission(run="r", ledger_ms=60_000, max_waiting=most))
        sender.send("jobs.full", rows)
    return sender.tally


def waiting(client: Any, prefix: str, kind: str) -> int:
    if kind == "bullmq":
        return int(client.llen(QueueKeys("jobs.full", prefix).wait))
    if kind == "list":
        return int(client.llen(ListKeys("jobs.full", prefix).queue))
    return int(client.xlen(StreamKeys("jobs.full", prefix).stream))


@pytest.mark.parametrize("kind", ["bullmq", "list", "stream"])
def test_a_queue_never_holds_more_waiting_jobs_than_it_may(
    valkey_url: str, prefix: str, client: Any, kind: str
) -> None:
    first = jobs(kind, range(30))
    for _ in range(2):
        with pytest.raises(QueueStaysFull, match="held 7 jobs for"):
            send(valkey_url, prefix, kind, first, most=7)
        assert waiting(client, prefix, kind) == 7
    assert send(valkey_url, prefix, kind, jobs(kind, range(30, 33)), most=10).added == 3
    assert waiting(client, prefix, kind) == 10
    assert send(valkey_url, prefix, kind, first[:7], most=1).known == 7, (
        "known rows do not count towards the limit"
    )


@pytest.mark.parametrize("kind", ["bullmq", "list", "stream"])
def test_a_delayed_job_does_not_count_towards_the_limit(valkey_url: str, prefix: str, kind: str) -> None:
    assert send(valkey_url, prefix, kind, jobs(kind, range(20), delay=60.0), most=5).added == 20
    assert send(valkey_url, prefix, kind, jobs(kind, range(20, 25)), most=5).added == 5


def test_delivered_entries_of_a_stream_do_not_count_towards_the_limit(
    valkey_url: str, prefix: str, client: Any
) -> None:
    keys = StreamKeys("jobs.full", prefix)
    assert send(valkey_url, prefix, "stream", jobs("stream", range(20)), most=20).added == 20
    client.xgroup_create(keys.stream, keys.consumer_group, id="0")
    client.xreadgroup(keys.consumer_group, "c", {keys.stream: ">"}, count=15)
    assert send(valkey_url, prefix, "stream", jobs("stream", range(20, 35)), most=20).added == 15
    with pytest.raises(QueueStaysFull, match="held 20 jobs"):
        send(valkey_url, prefix, "stream", jobs("stream", range(35, 36)), most=20)
