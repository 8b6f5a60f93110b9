"""The example of a store in S3, with a server that speaks its protocol."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer

from examples.codecs.s3_store import S3Store
from tests.servers import Server
from toril import Job, JobFailed, Queue, Worker
from toril.codecs import Codecs, Offload


@pytest.fixture
def store() -> Iterator[S3Store]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    options = {
        "endpoint_url": f"http://{host}:{port}",
        "region_name": "us-east-1",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
    }
    boto3.client("s3", **options).create_bucket(Bucket="payloads")
    yield S3Store("payloads", client_options=options)
    server.stop()


async def test_payloads_go_through_an_object_store(store: S3Store, valkey: Server, prefix: str) -> None:
    codecs = Codecs([Offload(store, min_size=1000)])

    async def handle(job: Job) -> str:
        return str(job.data["text"]) + "!"

    async with (
        Queue("coded", redis=valkey.url, prefix=prefix, codecs=codecs) as queue,
        Worker("coded", handle, redis=valkey.url, prefix=prefix, codecs=pickle.loads(pickle.dumps(codecs))),
    ):
        job = await queue.add("shout", {"text": "z" * 50_000})
        assert await job.wait_until_finished(30) == "z" * 50_000 + "!"
        client = boto3.client("s3", **store.client_options)
        for one in client.list_objects_v2(Bucket="payloads")["Contents"]:
            client.delete_object(Bucket="payloads", Key=one["Key"])
        gone = await queue.add("shout", {"text": "y" * 2000})
        for one in client.list_objects_v2(Bucket="payloads").get("Contents", []):
            client.delete_object(Bucket="payloads", Key=one["Key"])
        with pytest.raises(JobFailed, match="is not in the store"):
            await gone.wait_until_finished(30)
