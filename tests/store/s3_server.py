"""A real S3 server of this machine, for one test session: moto's, over HTTP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator

import boto3
import pytest
from moto.server import ThreadedMotoServer


@contextlib.contextmanager
def s3_server(bucket: str) -> Generator[str, None, None]:
    """The address of a server with an empty bucket; the environment names it and its keys meanwhile."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    patch = pytest.MonkeyPatch()
    try:
        names = {
            "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }  # fmt: skip
        for name, value in names.items():
            patch.setenv(name, value)
        boto3.client("s3").create_bucket(Bucket=bucket)
        yield url
    finally:
        patch.undo()
        server.stop()
