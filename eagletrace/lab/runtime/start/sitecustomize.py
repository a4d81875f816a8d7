"""Imported at the start of each process of a lab server that has a patched runtime."""

import os

if os.environ.get("LAB_START"):
    from eagletrace.lab.runtime import arrange

    arrange(os.environ["LAB_START"])
