"""What names a bucket, what its `run.json` says, and what is said when the service refuses."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from tinker_atropos.trajectories.command import command
from tinker_atropos.trajectories.export_bucket import Bucket, BucketError, files_of, refusal

GOOD = {
    "s3://archive": ("archive", "", "s3://archive"),
    "s3://archive/": ("archive", "", "s3://archive"),
    "s3://my-archive.1/runs/team_a": ("my-archive.1", "runs/team_a", "s3://my-archive.1/runs/team_a"),
    "s3://archive/runs/v=1.2/": ("archive", "runs/v=1.2", "s3://archive/runs/v=1.2"),
}


@pytest.mark.parametrize(("address", "parts"), GOOD.items())
def test_addresses(address: str, parts: tuple[str, str, str]) -> None:
    bucket = Bucket(address)
    assert (bucket.name, bucket.prefix, bucket.url) == parts


@pytest.mark.parametrize(
    "address",
    [
        *("", "archive", "s3://", "s3:///x", "s3:/archive/x", "gs://archive/x", "https://archive/x", "s3://a"),
        *("s3://Archive", "s3://-archive", "s3://archive-", "s3://arch_ive", "s3://key:secret@archive/x"),
        *(
            "s3://archive//x",
            "s3://archive/../x",
            "s3://archive/.x",
            "s3://archive/a b",
            "s3://archive/x?y",
            "s3://a/\n",
        ),
    ],
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(BucketError, match="is no place in a bucket; write it like s3://my-bucket/runs"):
        Bucket(address)


@pytest.mark.parametrize("endpoint", ["", "minio:9000", "ftp://minio", "https://", "https://key:secret@minio:9000"])
def test_endpoints_that_are_none(endpoint: str) -> None:
    with pytest.raises(BucketError, match=r"is no endpoint; write it like https://minio\.example\.com:9000"):
        Bucket("s3://archive", endpoint)


def answered(status: str, code: str = "", message: str = "") -> str:
    body = f"<Error><Code>{code}</Code><Message>{message}</Message><AWSAccessKeyId>AKIA1</AWSAccessKeyId></Error>"
    return f"Error performing PUT http://minio/archive/x in 1ms - Server returned non-2xx status code: {status}: " + (
        body if code else ""
    )


ANSWERS = {
    "no such bucket": (
        answered("404 Not Found", "NoSuchBucket", "The specified bucket does not exist."),
        "there is no bucket 'archive' at http://minio (NoSuchBucket: The specified bucket does not exist); "
        "make it, or name another one",
    ),
    "a wrong key": (
        answered("403 Forbidden", "InvalidAccessKeyId", "No such key."),
        "the bucket 'archive' at http://minio refuses these credentials (InvalidAccessKeyId: No such key); give "
        "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY that may list, get, put and delete there",
    ),
    "a refusal without a word": (
        answered("403 Forbidden"),
        "the bucket 'archive' at http://minio refuses these credentials (403 Forbidden); give AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY that may list, get, put and delete there",
    ),
    "another region": (
        answered(
            "400 Bad Request", "AuthorizationHeaderMalformed", "region &#34;a&#34; is wrong; expecting &#34;b&#34;"
        ),
        "the bucket 'archive' at http://minio is in another region (AuthorizationHeaderMalformed: region \"a\" is "
        'wrong; expecting "b"); give its region',
    ),
    "no credentials": (
        "Error performing PUT http://169.254.169.254/latest/api/token in 5s, after 3 retries - HTTP error",
        "no credentials were given for the bucket 'archive' at http://minio; give AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY (in a run file: as keys of the Secret that export.secretRef names)",
    ),
    "a service that has too much to do": (
        answered("503 Service Unavailable", "SlowDown", "Reduce the rate.") + " after 9 retries",
        "the service of the bucket 'archive' at http://minio answers SlowDown: Reduce the rate, tried for 30 s",
    ),
    "a certificate of an authority of one's own": (
        "after 4 retries - HTTP error: error sending request\n error: InvalidCertificate(\n   UnknownIssuer,\n )",
        "the certificate of the service of the bucket 'archive' at http://minio is not trusted (UnknownIssuer); "
        "SSL_CERT_FILE may name a file with the authority's",
    ),
    "another answer": (
        answered("501 Not Implemented"),
        "the service of the bucket 'archive' at http://minio answers 501 Not Implemented",
    ),
    "none": (
        "Error performing PUT http://minio/archive/x in 26s, after 9 retries, max_retries: 20 - HTTP error: sending",
        "the service of the bucket 'archive' at http://minio cannot be reached, tried for 30 s; check the endpoint, "
        "and that it runs",
    ),
}


@pytest.mark.parametrize(("said", "told"), ANSWERS.values(), ids=ANSWERS)
def test_a_refusal_is_told_with_what_to_do_and_without_the_request(
    said: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert refusal(Bucket("s3://archive/x", "http://minio"), said) == told


SUMMARIES = {
    "no object": (None, None),
    "no JSON": (b"hello", None),
    "somebody's JSON": (b'{"files": ["a.txt"]}', None),
    "JSON of another kind": (b"[1]", None),
    "a segment alone": (json.dumps({"files": ["segment-00000001.log"]}).encode(), None),
    "an export": (
        json.dumps({"files": ["segment-00000001.log", "snapshot-00000002.json"]}).encode(),
        ["segment-00000001.log", "snapshot-00000002.json"],
    ),
}


@pytest.mark.parametrize(("summary", "files"), SUMMARIES.values(), ids=SUMMARIES)
def test_which_objects_are_an_export(summary: bytes | None, files: list[str] | None) -> None:
    assert files_of(summary) == files


OPTIONS = {
    "another scheme": (["--export", "gs://archive"], "'gs://archive' is no place in a bucket"),
    "an endpoint for a folder": (
        ["--export", "folder", "--export-endpoint", "http://minio"],
        "Invalid value for --export-endpoint: is only for a bucket; give --export s3://BUCKET/PREFIX",
    ),
    "a region for nothing": (["--export-region", "eu"], "Invalid value for --export-region: is only for a bucket"),
    "a file": (["--export", __file__], "is a file; give a directory"),
}


@pytest.mark.parametrize(("options", "words"), OPTIONS.values(), ids=OPTIONS)
def test_what_cannot_be_exported_to_is_said_at_the_start(options: list[str], words: str) -> None:
    result = CliRunner().invoke(command, ["--store", "never-made", *options])
    assert result.exit_code == 2 and words in " ".join(result.output.split())


def test_without_the_library_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    result = CliRunner().invoke(command, ["--store", "never-made", "--export", "s3://archive/x"])
    assert result.exit_code == 2 and "pip install 'tinker-atropos[bucket]'" in " ".join(result.output.split())
