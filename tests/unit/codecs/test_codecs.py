"""Codecs: encoding and decoding of payloads, without a server."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from toril.codecs import AesGcm, Codec, Codecs, EncodedPayload, FolderStore, Offload, Step, Zstd
from toril.errors import InvalidOption, PayloadTooLarge, PlainPayload, UnknownOption, UnreadablePayload
from toril.protocol.codecs import Place, QueueCodecs

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
TEXT = json.dumps({"to": "a@b.c", "text": "how do you do " * 200}).encode()


def envelope_of(raw: bytes) -> Any:
    return json.loads(raw)["_toril"]


def with_body(raw: bytes, **changes: object) -> bytes:
    return json.dumps({"_toril": {**envelope_of(raw), **changes}}).encode()


# --- round trips ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=3000))
def test_every_payload_is_decoded_to_what_was_encoded(raw: bytes) -> None:
    codecs = Codecs([Zstd(min_size=0), AesGcm({"a": KEY})])
    assert codecs.decode(codecs.encode(raw, "data"), "data") == raw


def test_an_encoded_payload_is_one_json_object_that_names_its_steps(tmp_path: Path) -> None:
    codecs = Codecs([Zstd(), AesGcm({"2026": KEY}), Offload(FolderStore(tmp_path), min_size=0)])
    body = envelope_of(codecs.encode(TEXT, "data"))
    assert (body["v"], body["data"]) == (1, "")
    assert [step["codec"] for step in body["steps"]] == ["zstd", "aes-gcm", "offload"]
    assert body["steps"][1] == {"codec": "aes-gcm", "key": "2026"}
    stored = (tmp_path / body["steps"][2]["name"][:2] / body["steps"][2]["name"]).read_bytes()
    assert body["steps"][2]["size"] == len(stored)
    assert body["steps"][2]["sha256"] == hashlib.sha256(stored).hexdigest()
    assert b"how do you do" not in stored


def test_small_payloads_and_those_that_grow_are_not_compressed() -> None:
    codecs = Codecs([Zstd(min_size=100)])
    assert codecs.encode(b'"short"', "data") == b'"short"'
    noise = base64.b64encode(os.urandom(300))
    assert len(envelope_of(codecs.encode(TEXT, "data"))["data"]) < len(TEXT) / 10
    assert codecs.encode(os.urandom(300), "data")[:10] != b'{"_toril":', "random bytes do not get smaller"
    assert codecs.decode(codecs.encode(noise, "data"), "data") == noise


def test_codecs_pickle_and_show_no_key() -> None:
    codecs = Codecs([Zstd(), AesGcm({"a": KEY})])
    again = pickle.loads(pickle.dumps(codecs))
    assert again.decode(codecs.encode(TEXT, "data"), "data") == TEXT
    assert repr(KEY) not in repr(codecs)
    assert "\\x01\\x02" not in repr(codecs)


# --- keys -----------------------------------------------------------------------------------------------------------


def test_the_first_key_encrypts_and_all_keys_decrypt() -> None:
    old = Codecs([AesGcm({"old": OTHER_KEY})])
    both = Codecs([AesGcm({"new": KEY, "old": OTHER_KEY})])
    assert both.decode(old.encode(TEXT, "data"), "data") == TEXT
    assert envelope_of(both.encode(TEXT, "data"))["steps"] == [{"codec": "aes-gcm", "key": "new"}]
    with pytest.raises(UnreadablePayload, match="key 'new' is not among those given \\(old\\)"):
        old.decode(both.encode(TEXT, "data"), "data")


def test_two_encryptions_of_one_payload_differ() -> None:
    codecs = Codecs([AesGcm({"a": KEY})])
    assert codecs.encode(TEXT, "data") != codecs.encode(TEXT, "data")


def test_other_bytes_under_the_same_key_id_are_reported_without_the_payload() -> None:
    encoded = Codecs([AesGcm({"a": KEY})]).encode(TEXT, "data")
    with pytest.raises(
        UnreadablePayload, match="under the key id 'a' differ, or the payload was changed"
    ) as error:
        Codecs([AesGcm({"a": OTHER_KEY})]).decode(encoded, "data")
    assert "how do you do" not in str(error.value)


def test_what_was_changed_or_encrypted_for_another_field_is_not_decrypted() -> None:
    codecs = Codecs([Zstd(), AesGcm({"a": KEY, "b": KEY})])
    encoded = codecs.encode(TEXT, "data")
    changed = bytearray(base64.b64decode(envelope_of(encoded)["data"]))
    changed[-1] ^= 1
    forged = [
        with_body(encoded, data=base64.b64encode(bytes(changed)).decode()),
        with_body(encoded, steps=envelope_of(encoded)["steps"][1:]),  # "it was not compressed"
        with_body(encoded, data=""),
    ]
    for raw in forged:
        with pytest.raises(UnreadablePayload):
            codecs.decode(raw, "data")
    with pytest.raises(UnreadablePayload):
        codecs.decode(encoded, "result")


# --- what is refused ------------------------------------------------------------------------------------------------


def test_plain_text_on_an_encrypted_queue_is_refused_unless_allowed() -> None:
    strict, lenient = Codecs([AesGcm({"a": KEY})]), Codecs([AesGcm({"a": KEY})], allow_plain=True)
    compressed = Codecs([Zstd()]).encode(TEXT, "data")
    both = Codecs([Zstd(), AesGcm({"a": KEY})])
    with pytest.raises(PlainPayload, match="allow_plain=True"):
        strict.decode(TEXT, "data")
    with pytest.raises(PlainPayload):
        both.decode(compressed, "data")  # encoded, and all the same not encrypted
    assert lenient.decode(TEXT, "data") == TEXT
    assert Codecs([Zstd()]).decode(TEXT, "data") == TEXT


def test_an_unknown_codec_and_an_unknown_version_are_clear_errors() -> None:
    encoded = Codecs([Zstd()]).encode(TEXT, "data")
    with pytest.raises(UnreadablePayload, match="codec 'zstd' is not known"):
        Codecs([AesGcm({"a": KEY})]).decode(encoded, "data")
    with pytest.raises(UnreadablePayload, match="version 2 of encoded payloads is not known; update toril"):
        Codecs([Zstd()]).decode(with_body(encoded, v=2), "data")


@pytest.mark.parametrize(
    "raw",
    [
        b'{"_toril":',
        b'{"_toril":1}',
        b'{"_toril":{"v":1}}',
        b'{"_toril":{"v":1,"steps":[],"data":"%%%"}}',
        b'{"_toril":{"v":1,"steps":[{}],"data":""}}',
        b'{"_toril":{"v":1,"steps":7,"data":""}}',
        b'{"_toril":{"v":1,"steps":[{"codec":"zstd"}],"data":"AAAA"}}',
        b'{"_toril":{"v":1,"steps":[{"codec":"offload","name":"../../etc/passwd"}],"data":""}}',
        b'{"_toril":{"v":1,"steps":[{"codec":"offload","name":"0123456789abcdef0123456789abcdef"}],"data":""}}',
    ],
)
def test_damaged_payloads_are_permanent_errors(raw: bytes, tmp_path: Path) -> None:
    codecs = Codecs([Zstd(), Offload(FolderStore(tmp_path))])
    with pytest.raises(UnreadablePayload):
        codecs.decode(raw, "data")


def test_decompression_stops_at_the_limit() -> None:
    """A bomb of 1 GB in 32 kB is refused with the memory of the limit: its child process may use no more."""
    program = """
import base64, json, resource, zstandard
from toril.codecs import Codecs, Zstd
from toril.errors import UnreadablePayload
zeros = zstandard.ZstdCompressor().compressobj()
bomb = b"".join(zeros.compress(bytes(1 << 20)) for _ in range(1024)) + zeros.flush()
body = {"v": 1, "steps": [{"codec": "zstd"}], "data": base64.b64encode(bomb).decode()}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    Codecs([Zstd()], max_size=1_000_000).decode(json.dumps({"_toril": body}).encode(), "data")
except UnreadablePayload as error:
    assert "more than 1000000 bytes" in str(error), error
else:
    raise SystemExit("it was decompressed")
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert after - before < 50_000, (before, after)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_frame_that_lies_about_its_size_is_bounded_too() -> None:
    frame = zstandard.ZstdCompressor(write_content_size=True).compress(bytes(5_000_000))
    body = {"v": 1, "steps": [{"codec": "zstd"}], "data": base64.b64encode(frame).decode()}
    with pytest.raises(UnreadablePayload, match="more than 4096 bytes"):
        Codecs([Zstd()], max_size=4096).decode(json.dumps({"_toril": body}).encode(), "data")


def test_a_payload_above_the_limit_is_not_encoded() -> None:
    with pytest.raises(PayloadTooLarge, match=r"codecs\.max_size allows 10"):
        Codecs([Zstd()], max_size=10).encode(TEXT, "data")


def test_options_are_checked_before_anything_is_encoded() -> None:
    for wrong in (
        lambda: Codecs([]),
        lambda: Codecs([1]),  # type: ignore[list-item]
        lambda: Codecs("zstd"),  # type: ignore[arg-type]
        lambda: Codecs([AesGcm({"a": KEY}), Zstd()]),
        lambda: AesGcm({}),
        lambda: AesGcm({"a": b"short"}),
        lambda: AesGcm({"a": "x" * 32}),  # type: ignore[dict-item]
        lambda: Zstd(level=40),
        lambda: Offload("folder"),  # type: ignore[arg-type]
        lambda: QueueCodecs.of({"send": 1}),  # type: ignore[dict-item]
        lambda: QueueCodecs.of(7),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption):
            wrong()
    with pytest.raises(UnknownOption, match="allow_plain"):
        Codecs([Zstd()], allow_plian=True)  # type: ignore[call-arg]


def test_importing_the_package_imports_neither_library() -> None:
    program = "import sys, toril.codecs; assert not {'zstandard', 'cryptography'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


# --- stores ---------------------------------------------------------------------------------------------------------


def test_a_changed_or_removed_file_is_a_permanent_error(tmp_path: Path) -> None:
    codecs = Codecs([Offload(FolderStore(tmp_path), min_size=0)])
    encoded = codecs.encode(TEXT, "data")
    (file,) = [one for one in tmp_path.rglob("*") if one.is_file()]
    assert file.stat().st_mode & 0o077 == 0, "others may not read it"
    file.write_bytes(TEXT + b" ")
    with pytest.raises(UnreadablePayload, match="was changed in the store"):
        codecs.decode(encoded, "data")
    file.unlink()
    with pytest.raises(UnreadablePayload, match="is not in the store"):
        codecs.decode(encoded, "data")


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    codecs = Codecs([Offload(FolderStore(tmp_path), min_size=0)])
    encoded = codecs.encode(TEXT, "data")
    with pytest.raises(UnreadablePayload, match="more than 100 bytes"):
        Codecs(codecs.codecs, max_size=100).decode(encoded, "data")


def test_clean_up_removes_payloads_by_age_and_nothing_else(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    codecs = Codecs([Offload(store, min_size=0)])
    first, second = codecs.encode(b'"old"', "data"), codecs.encode(b'"new"', "data")
    name = envelope_of(first)["steps"][0]["name"]
    old = tmp_path / name[:2] / name
    os.utime(old, (time.time() - 7200, time.time() - 7200))
    (tmp_path / name[:2] / "notes.txt").write_text("not ours")
    os.utime(tmp_path / name[:2] / "notes.txt", (0, 0))
    assert store.remove_older_than(3600) == 1
    assert store.remove_older_than(3600) == 0
    assert codecs.decode(second, "data") == b'"new"'
    assert (tmp_path / name[:2] / "notes.txt").exists()
    with pytest.raises(UnreadablePayload):
        codecs.decode(first, "data")


# --- codecs of an application, and what can be said without keys ------------------------------------------------


class Reversed:
    """A codec of an application."""

    name = "reversed"
    place: Place = "compress"

    def encode(self, raw: bytes, context: bytes) -> tuple[bytes, Step]:
        return raw[::-1], {}

    def decode(self, raw: bytes, step: Step, context: bytes, max_size: int) -> bytes:
        return raw[::-1]


def test_an_application_can_bring_a_codec() -> None:
    codec: Codec = Reversed()
    codecs = Codecs([codec, AesGcm({"a": KEY})])
    assert codecs.decode(codecs.encode(TEXT, "data"), "data") == TEXT


def test_an_encoded_payload_can_be_described_without_its_keys() -> None:
    encoded = Codecs([Zstd(), AesGcm({"2026": KEY})]).encode(TEXT, "data")
    assert str(EncodedPayload.of(encoded)).startswith("encoded (zstd, aes-gcm key 2026), ")
    assert EncodedPayload.of(TEXT) is None
    assert EncodedPayload.of(b'{"_toril":1}') is None


def test_codecs_by_job_name_leave_other_jobs_as_they_are() -> None:
    codecs = QueueCodecs.of({"secret": Codecs([AesGcm({"a": KEY})])})
    assert codecs is not None
    assert codecs.encode("open", TEXT, "data") == TEXT
    encoded = codecs.encode("secret", TEXT, "data")
    assert codecs.decode("secret", encoded, "data") == TEXT
    with pytest.raises(PlainPayload):
        codecs.decode("secret", TEXT, "data")
    with pytest.raises(UnreadablePayload, match="no codecs here"):
        codecs.decode("open", encoded, "data")
    assert codecs.decode_any(encoded, "data") == codecs.decode_any(TEXT, "data") == TEXT
