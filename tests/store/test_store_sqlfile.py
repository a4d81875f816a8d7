from __future__ import annotations

import pytest

from eagletrace.store.sqlfile import Param, load_folder, parse

TEXT = """-- title: Worst requests
-- about: one line
--        and another
-- needs: rounds, verifies
-- column depth: how deep
-- param limit: int = 20, how many, at most
-- a remark without a key
SELECT 1 -- title: not front matter
LIMIT $limit;
"""


def test_front_matter() -> None:
    file = parse("worst", TEXT)
    assert file.title == "Worst requests"
    assert file.meta["about"] == "one line and another"
    assert file.words("needs") == ["rounds", "verifies"]
    assert file.columns == {"depth": "how deep"}
    assert file.params == {"limit": Param("limit", "int", 20, "how many, at most")}
    assert file.sql == "SELECT 1 -- title: not front matter\nLIMIT $limit"


def test_a_malformed_parameter_names_the_file() -> None:
    with pytest.raises(ValueError, match=r"worst\.sql: param limit"):
        parse("worst", "-- param limit: twenty\nSELECT 1")


def test_parameters_are_typed() -> None:
    with pytest.raises(ValueError):
        Param("limit", "int", 20, "").parse("many")
    assert Param("x", "float", 1.0, "").parse("2.5") == 2.5


@pytest.mark.parametrize("folder", ["views", "explore", "checks"])
def test_every_file_has_a_title_and_a_statement(folder: str) -> None:
    files = load_folder(folder)
    assert files
    for file in files.values():
        assert file.title != file.name and file.sql
