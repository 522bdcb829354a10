from __future__ import annotations

from pathlib import Path

import pytest

from health_exporter.demo.corpus import CorpusError, read_corpus, standard_library


def test_the_standard_library_gives_enough_text_for_a_run():
    text = read_corpus()

    assert len(text) > 2_000_000
    assert b"def " in text


def test_the_same_installation_gives_the_same_text():
    assert read_corpus(limit=50_000) == read_corpus(limit=50_000)


def test_a_limit_cuts_the_text():
    assert read_corpus(limit=1000) == read_corpus(limit=2000)[:1000]


def test_files_come_in_the_order_of_their_paths(tmp_path: Path):
    for name in ("b.py", "a/z.py", "a.py"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n")

    assert read_corpus(tmp_path) == b"# a/z.py\n# a.py\n# b.py\n"


def test_what_is_no_source_is_left_out(tmp_path: Path):
    (tmp_path / "a.py").write_bytes(b"kept\n")
    (tmp_path / "a.pyc").write_bytes(b"compiled")
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "b.py").write_bytes(b"somebody else's")

    assert read_corpus(tmp_path) == b"kept\n"


def test_a_file_that_cannot_be_read_is_passed_over(tmp_path: Path):
    (tmp_path / "a.py").symlink_to(tmp_path / "gone")
    (tmp_path / "b.py").write_bytes(b"there\n")

    assert read_corpus(tmp_path) == b"there\n"


def test_no_text_is_an_error_that_names_the_folder(tmp_path: Path):
    with pytest.raises(CorpusError, match=str(tmp_path)):
        read_corpus(tmp_path)


def test_the_standard_library_is_where_its_modules_are():
    assert (standard_library() / "argparse.py").is_file()
