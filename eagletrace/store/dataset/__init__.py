"""Runs in one Hive-partitioned data set, in a folder or behind any URL that fsspec opens."""
