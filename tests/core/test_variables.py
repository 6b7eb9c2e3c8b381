"""Variables of declarations."""

from __future__ import annotations

from pathlib import Path

import pytest

from cq_engine.core.errors import DestinationError, SourceError
from cq_engine.core.variables import expand
from cq_engine.destinations import variables


def test_variables_and_files_stand_for_texts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "a secret"
    file.write_text("  s3cret\n\n", encoding="utf-8")
    monkeypatch.setenv("CQ_USER", "me")
    assert expand(f"x://${{CQ_USER}}:${{file:{file}}}@h", SourceError, "nobody") == "x://me:s3cret@h"
    assert variables.expand(f"${{file:{file}}}") == "s3cret"
    assert expand("$CQ_USER ${} ${a-b}", SourceError, "nobody") == "$CQ_USER ${} ${a-b}"


def test_what_is_not_there_is_an_error_of_who_asks(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="CQ_NOT_SET is not set") as error:
        expand("${CQ_NOT_SET}", SourceError, "the test")
    assert error.value.detail == "it is read by the test"
    with pytest.raises(DestinationError, match="none cannot be read: No such file"):
        variables.expand(f"${{file:{tmp_path}/none}}")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(SourceError, match="it is no text") as error:
        expand(f"${{file:{tmp_path}/bytes}}", SourceError, "the test")
    assert error.value.__cause__ is None
