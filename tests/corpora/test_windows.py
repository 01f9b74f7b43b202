import itertools

import pytest

from tangentlens import InputError
from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.windows import Text, windows

WORDS = " ".join(f"wörd{i}" for i in range(60_000))


@pytest.fixture
def file(tmp_path):
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    return tmp_path / "words.txt"


def numbers(text):
    """A word a token, and its number the id."""
    return [int(word.removeprefix("wörd")) for word in text.split()]


def test_every_window_is_a_run_of_the_text_each_comes_once_and_few_words_are_lost(file):
    found = [window.tolist() for window in windows(Text(file), numbers, length=8, seed=0)]
    assert all(window == list(range(window[0], window[0] + 8)) for window in found)
    seen = sorted(itertools.chain(*found))
    assert len(seen) == len(set(seen)) > 0.99 * 60_000


def test_the_seed_decides_the_order_and_the_whole_text_is_mixed(file):
    first, again, other = (
        [int(window[0]) for window in windows(Text(file), numbers, length=8, seed=seed)] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert max(first[:50]) - min(first[:50]) > 30_000


def test_only_what_is_used_is_read(tmp_path):
    """A file of a terabyte, almost all of it a hole, gives its first windows at once."""
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(2**40)
    text = Text(tmp_path / "huge.txt")
    assert len(text.fingerprint) == 64
    assert next(windows(text, lambda piece: [0] * len(piece), length=16, seed=0)).shape == (16,)


def test_the_fingerprint_is_of_the_text(file, tmp_path):
    (tmp_path / "same.txt").write_text(WORDS, encoding="utf-8")
    (tmp_path / "other.txt").write_text(WORDS.replace("59999", "59998"), encoding="utf-8")
    same, other = (Text(tmp_path / name).fingerprint for name in ("same.txt", "other.txt"))
    assert Text(file).fingerprint == same != other


def test_the_built_in_text_is_cut_at_white_space():
    text = Text()
    assert text.size == len(builtin_text().encode())
    whole = set(builtin_text().split())
    assert set(text.piece(2**16, 2**16).split()) <= whole


def test_text_without_white_space_is_cut_between_characters(tmp_path):
    text = "漢字仮名" * 40_000
    (tmp_path / "kanji.txt").write_text(text, encoding="utf-8")
    found = list(windows(Text(tmp_path / "kanji.txt"), lambda piece: [ord(c) for c in piece], length=4, seed=0))
    assert 4 * len(found) > 0.99 * len(text)
    assert {chr(i) for window in found for i in window.tolist()} == set("漢字仮名")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"abc \xff\xfe def")
    with pytest.raises(InputError, match="must be UTF-8 text"):
        next(windows(Text(tmp_path / "bytes"), numbers, 4, 0))
    with pytest.raises(InputError, match="must be a text file"):
        next(windows(Text(tmp_path / "none"), numbers, 4, 0))
