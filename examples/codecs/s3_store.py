"""A store of payloads in S3, or in what speaks its protocol: `Offload(S3Store("my-bucket"))`.

Remove old payloads by a lifecycle rule of the bucket.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import boto3
from botocore.exceptions import ClientError


@dataclass(frozen=True)
class S3Store:
    """Payloads as objects of one bucket. Its settings pickle; each process makes its own client."""

    bucket: str
    prefix: str = "toril/"
    client_options: dict[str, Any] = field(default_factory=dict)  # of boto3.client, such as endpoint_url

    @cached_property
    def _client(self) -> Any:
        return boto3.client("s3", **self.client_options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_client"}

    def write(self, name: str, content: bytes) -> None:
        self._client.put_object(Bucket=self.bucket, Key=self.prefix + name, Body=content)

    def read(self, name: str, max_size: int) -> bytes | None:
        try:
            found = self._client.get_object(Bucket=self.bucket, Key=self.prefix + name)
        except ClientError as error:
            if error.response["Error"]["Code"] == "NoSuchKey":
                return None
            raise
        content: bytes = found["Body"].read(max_size + 1)
        return content
