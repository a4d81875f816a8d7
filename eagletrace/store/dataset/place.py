"""A folder behind a URL, through fsspec: whole files in and out, every operation within a time limit."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from eagletrace.errors import EagletraceError
from eagletrace.store.dataset.layout import Stored, is_url

T = TypeVar("T")
LOOK_S = 60.0  # a listing or a small file
MOVE_S = 60.0  # a larger one, and a second for each of `SLOWEST` bytes
SLOWEST = 256 << 10
WHOLE_WRITES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "memory"}
"""Places where a file is there as a whole once it was written, or not at all."""
_S3 = {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 2}}}
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError", "ProfileNotFound")


class RemoteError(EagletraceError):
    """A URL that cannot be read or written: what is wrong, and what to do."""


class MissingDatasetExtraError(EagletraceError):
    """fsspec, or what it needs for this kind of URL, is not installed."""


class Place:
    """A folder at a URL or path. Paths given to its methods are relative to it."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") or url
        self.shown = re.sub(r"//[^/@]*@", "//***@", self.url)
        self._fs, self._root = self._call(lambda: _open(self.url), LOOK_S)
        protocols: Any = self._fs.protocol
        self._protocols = {protocols} if isinstance(protocols, str) else set(protocols)

    @property
    def is_local(self) -> bool:
        """Whether it is a folder of this machine."""
        return "file" in self._protocols

    def local_path(self, path: str) -> Path:
        """The path on this machine, where it is there."""
        return Path(self._full(path))

    @property
    def root(self) -> str:
        """The folder as fsspec names it: what paths of `find` begin with."""
        return str(self._root).rstrip("/")

    def exists(self, path: str) -> bool:
        """Whether there is a file."""
        return self._call(lambda: self._is_file(path), LOOK_S)

    def _is_file(self, path: str) -> bool:
        try:
            return bool(self._fs.info(self._full(path))["type"] == "file")
        except FileNotFoundError as error:
            if _no_bucket(error):
                raise
            return False

    def find(self, folder: str) -> list[Stored]:
        """All files below a folder; none where it is absent."""
        self._fs.invalidate_cache()
        found: dict[str, dict[str, Any]] = self._call(lambda: self._find(folder), LOOK_S)
        return [Stored(path, path.rpartition("/")[2], int(info.get("size") or 0), _changed(info))
                for path, info in sorted(found.items())]  # fmt: skip

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            return dict(self._fs.find(self._full(folder), detail=True))
        except FileNotFoundError as error:
            if _no_bucket(error):
                raise
            return {}

    def read(self, path: str, limit: int) -> bytes:
        """A small file; RemoteError above `limit` bytes."""
        data: bytes = self._call(lambda: self._fs.cat_file(self._full(path), start=0, end=limit + 1), LOOK_S)
        if len(data) > limit:
            raise RemoteError(f"{self.shown}/{path} is larger than {limit >> 20} MiB")
        return data

    def fetch(self, files: Sequence[Stored], targets: Sequence[Path]) -> None:
        """Copy files to this machine."""
        size = sum(file.size for file in files)
        paths = [file.path for file in files]
        self._call(lambda: self._fs.get(paths, [str(t) for t in targets]), _limit(size))

    def write(self, path: str, source: str | bytes, size: int) -> None:
        """Put a file in place as a whole: from a path of this machine, or these bytes."""
        full = self._full(path)
        whole = bool(self._protocols & WHOLE_WRITES)
        name = full if whole else f"{full.rpartition('/')[0]}/.{uuid.uuid4().hex}.tmp"

        def put() -> None:
            if not whole:
                self._fs.makedirs(full.rpartition("/")[0], exist_ok=True)
            try:
                if isinstance(source, bytes):
                    self._fs.pipe_file(name, source)
                else:
                    self._fs.put_file(source, name)
                if not whole:
                    self._rename(name, full)
            except BaseException:
                if not whole and self._fs.exists(name):
                    self._fs.rm_file(name)
                raise

        self._call(put, _limit(size))

    def _rename(self, old: str, new: str) -> None:
        if self.is_local:
            os.replace(old, new)  # noqa: PTH105 -- these are names that fsspec made
        else:
            self._fs.mv(old, new)

    def digest(self, path: str, size: int) -> str:
        """SHA-256 of a file, read back."""

        def read() -> str:
            with self._fs.open(self._full(path), "rb") as file:
                return sha256(file)

        return self._call(read, _limit(size))

    def remove(self, files: Sequence[Stored]) -> None:
        """Remove files; those that are gone already are passed over."""

        def remove() -> None:
            for file in files:
                if self._fs.exists(file.path):
                    self._fs.rm_file(file.path)

        self._call(remove, LOOK_S)

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else self._root

    def _call(self, work: Callable[[], T], seconds: float) -> T:
        """The work's result; RemoteError where it fails, or takes longer."""
        made: list[T] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                made.append(work())
            except BaseException as error:  # noqa: BLE001 -- raised again below
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True, name="eagletrace-dataset")
        thread.start()
        thread.join(seconds)
        if failed:
            raise _explained(self.shown, failed[0])
        if not made:
            raise RemoteError(f"{self.shown} does not answer within {seconds:.0f} s: check its address and the network")
        return made[0]


def sha256(file: Any) -> str:
    """SHA-256 of what is left to read of a file, in hexadecimal."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _open(url: str) -> tuple[Any, str]:
    try:
        import fsspec
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDatasetExtraError(
            f"data sets need fsspec ({error}): pip install 'eagletrace[dataset]', which also has s3fs for S3"
        ) from None
    options: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    if re.match(r"s3a?://", url):
        options.update(_S3)
    try:
        if not is_url(url):
            return fsspec.filesystem("file", **options), str(Path(url).expanduser().absolute())
        opened: tuple[Any, str] = url_to_fs(url, **options)
        return opened
    except ImportError as error:
        raise MissingDatasetExtraError(
            f"this kind of URL needs another package: {error} (pip install 'eagletrace[dataset]' has S3)"
        ) from None
    except ValueError as error:
        raise RemoteError(f"{url.partition('://')[0]}:// is no kind of URL that fsspec opens ({error})") from None


def _explained(shown: str, error: BaseException) -> BaseException:
    """What went wrong in words, with what to do."""
    if isinstance(error, EagletraceError | KeyboardInterrupt):
        return error
    kind, text = type(error).__name__, (str(error).splitlines() or [""])[0] or type(error).__name__
    if kind in _CREDENTIALS:
        return RemoteError(f"{shown}: no usable credentials ({text}); for S3 set AWS_ACCESS_KEY_ID and "
                           "AWS_SECRET_ACCESS_KEY, or AWS_PROFILE")  # fmt: skip
    if isinstance(error, PermissionError):
        return RemoteError(f"{shown}: access is refused ({text}): check the credentials and what they may do")
    if isinstance(error, FileNotFoundError):
        return RemoteError(f"{shown}: does not exist ({text}): check the name of the bucket or folder")
    return RemoteError(f"{shown}: cannot be reached or used ({kind}: {text})")


def _no_bucket(error: FileNotFoundError) -> bool:
    return "bucket" in str(error).lower() and "does not exist" in str(error).lower()


def _limit(size: int) -> float:
    return MOVE_S + size / SLOWEST


def _changed(info: dict[str, Any]) -> float:
    for key in ("LastModified", "mtime", "created", "last_modified"):
        value = info.get(key)
        if isinstance(value, int | float):
            return float(value)
        if value is not None and hasattr(value, "timestamp"):
            return float(value.timestamp())
    return 0.0
