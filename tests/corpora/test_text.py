import pytest

from tangentlens import InputError
from tangentlens.corpora.text import builtin_text, read_text


def test_the_builtin_text_is_long_english_and_always_the_same():
    text = builtin_text()
    assert text == builtin_text()
    assert len(text) > 400_000
    assert text.count(" the ") > 3_000


def test_a_file_is_read_as_utf8(tmp_path):
    (tmp_path / "a.txt").write_bytes("Grüße\n".encode())
    assert read_text(tmp_path / "a.txt") == "Grüße\n"


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\xfe\x00", "must be UTF-8"), (b" \n", "is empty"), (None, "No such file")]
)
def test_bad_files_say_what_to_do(content, says, tmp_path):
    path = tmp_path / "a.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=says):
        read_text(path)
