"""Writes a file as a whole or not at all: under a temporary name beside it, then renamed."""

from __future__ import annotations

import contextlib
import gzip
import os
from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO, cast

from eagletrace.errors import EagletraceError

GZIP_LEVEL = 3  # a trace shrinks to a tenth; higher levels take three times as long for a few percent


class OutputError(EagletraceError):
    """A file cannot be written."""


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO, None, None]:
    """A file to write to, which becomes `path` when all is written; compressed where the name ends in `.gz`.

    Nothing is left behind by an error. OutputError where `path` cannot be written.
    """
    if path.is_dir():
        raise OutputError(f"cannot write {path}: it is a folder; name a file in it")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(path.stem, "wb", GZIP_LEVEL, raw, mtime=0) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield raw
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
