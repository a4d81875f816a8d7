"""Checks a draft's files before anybody starts a server: no GPU, no server, no torch."""

from __future__ import annotations

from eagletrace.check.engine import check
from eagletrace.check.result import FileCheck, Repair

__all__ = ["FileCheck", "Repair", "check"]
