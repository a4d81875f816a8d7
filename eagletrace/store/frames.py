"""Arrow tables as data frames of libraries that may not be installed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from eagletrace.errors import EagletraceError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl


class MissingPackageError(EagletraceError):
    """What was asked for needs a package that is not installed."""


def require(name: Literal["pandas", "polars"]) -> Any:
    """The library; MissingPackageError, which says how to install it, where it is absent."""
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingPackageError(
            f"{name} is not installed ({error}): pip install {name}, or 'eagletrace[frames]'; "
            "`arrow` and `rows` need neither pandas nor polars"
        ) from None


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """A DataFrame of Arrow-backed columns: integers with NULL stay integers, and NULL stays NA."""
    pandas = require("pandas")
    return table.to_pandas(types_mapper=pandas.ArrowDtype)


def to_polars(table: pa.Table) -> pl.DataFrame:
    """A polars DataFrame that shares the table's memory where it can."""
    return require("polars").from_arrow(table)
