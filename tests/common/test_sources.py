"""No source leads out of the model root, and none is fetched unless that is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from ladr.errors import InvalidRequest, NotFound
from services.common.sources import locate, locate_file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "model").mkdir(parents=True)
    (tmp_path / "root" / "a.gguf").write_bytes(b"GGUF")
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    (tmp_path / "root" / "link.gguf").symlink_to(tmp_path / "secret.gguf")
    (tmp_path / "root" / "loop").symlink_to(tmp_path / "root" / "loop")
    return tmp_path / "root"


@pytest.mark.parametrize(
    "source", ["../secret.gguf", "/etc/passwd", "link.gguf", "model/../../secret.gguf", "a\0b", "x" * 5000, "loop"]
)
def test_a_path_out_of_the_root_or_no_path_at_all_is_refused(root: Path, source: str) -> None:
    for find in (locate, locate_file):
        with pytest.raises(InvalidRequest) as refused:
            find(source, root)
        assert refused.value.field == "source"


def test_what_is_there_is_found(root: Path) -> None:
    assert locate("model", root) == (str(root / "model"), "")
    assert locate("a.gguf", root) == (str(root), "a.gguf")
    assert locate_file("a.gguf", root) == root / "a.gguf"
    assert locate_file("", root).suffix == ".gguf"
    with pytest.raises(InvalidRequest):
        locate_file("model", root)


def test_a_hub_name_is_taken_only_where_that_is_allowed(root: Path) -> None:
    with pytest.raises(NotFound):
        locate("org/name", root)
    assert locate("org/name", root, allow_hub=True) == ("org/name", "")
    for other in ("org/name/more", "https://x/y", "-x/y"):
        with pytest.raises((NotFound, InvalidRequest)):
            locate(other, root, allow_hub=True)
