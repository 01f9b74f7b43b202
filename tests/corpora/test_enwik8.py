import gzip
import hashlib
import lzma
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from real_models import DATA
from tangentlens import InputError
from tangentlens.corpora import enwik8
from tangentlens.corpora.enwik8 import PREFIXES, clean_enwik8, read_enwik8, tokenize_enwik8
from tangentlens.corpora.symbols import N_IDS, SYMBOLS, decode, encode, spell
from tangentlens.corpora.tokens import MASK, PAD
from tangentlens.models.small import small_model
from tangentlens.training.objectives import batch_for

PIECE = DATA / "enwik8-20mb.xz"
real = pytest.mark.skipif(not PIECE.exists(), reason="the first 20 MB of enwik8 are not on this machine")

PAGE = b'<page><text xml:space="preserve">The [[cat]] n\xc3\xb6. %05d sat.</text></page>\n'
RAW = b"".join(PAGE % number for number in range(40))


@pytest.fixture
def known(monkeypatch):
    """A little enwik8 of 40 pages, of which 800, 1,600 and all bytes have known hashes."""
    places = (800, 1_600, len(RAW))
    monkeypatch.setattr(enwik8, "PREFIXES", {place: hashlib.sha256(RAW[:place]).hexdigest() for place in places})
    monkeypatch.setattr(enwik8, "_LEAST", places[0])
    monkeypatch.setattr(enwik8, "_WHOLE", places[-1])


def plain(path, raw):
    path.write_bytes(raw)


def zipped(path, raw):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("enwik8", raw)


def gzipped(path, raw):
    path.write_bytes(gzip.compress(raw))


def xzipped(path, raw):
    path.write_bytes(lzma.compress(raw))


PACKERS = (plain, zipped, gzipped, xzipped)


@pytest.mark.parametrize("pack", PACKERS)
def test_compression_is_seen_in_the_file_whatever_its_name(pack, known, tmp_path):
    pack(tmp_path / "enwik8.txt", RAW)
    assert read_enwik8(tmp_path / "enwik8.txt") == RAW
    assert read_enwik8(tmp_path / "enwik8.txt", size=1_000) == RAW[:1_000]


@pytest.mark.parametrize("pack", PACKERS[1:])
def test_an_archive_that_is_cut_off_is_refused(pack, known, tmp_path):
    path = tmp_path / "enwik8.zip"
    pack(path, RAW)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError, match="must be a whole archive, but cannot be unpacked"):
        read_enwik8(path)


def test_an_archive_holds_one_file(known, tmp_path):
    with zipfile.ZipFile(tmp_path / "two.zip", "w") as archive:
        archive.writestr("enwik8", RAW)
        archive.writestr("notes.txt", "two")
    with pytest.raises(InputError, match="must hold one file, enwik8, but holds 2"):
        read_enwik8(tmp_path / "two.zip")


def test_a_leading_piece_and_a_longer_dump_are_enwik8_too(known, tmp_path):
    plain(tmp_path / "piece", RAW[:1_000])
    assert read_enwik8(tmp_path / "piece") == RAW[:1_000]
    plain(tmp_path / "enwik9", RAW + b"more pages")
    assert read_enwik8(tmp_path / "enwik9") == RAW


def test_only_what_is_used_is_unpacked(known, tmp_path):
    """The end of the archive is missing, and nobody notices."""
    gzipped(tmp_path / "enwik9.gz", RAW + np.random.default_rng(0).bytes(1_000_000))
    whole = (tmp_path / "enwik9.gz").read_bytes()
    (tmp_path / "enwik9.gz").write_bytes(whole[:-1_000])
    assert read_enwik8(tmp_path / "enwik9.gz") == RAW


def test_another_file_is_refused_with_both_hashes_and_sizes(tmp_path):
    plain(tmp_path / "text8", b" anarchism originated" * 50_000)
    found = hashlib.sha256((b" anarchism originated" * 50_000)[:1_000_000]).hexdigest()
    says = (
        f"enwik8, 100,000,000 bytes.*but is not: .* 1,050,000 bytes .* {found}, not {PREFIXES[1_000_000]}; get it with"
    )
    with pytest.raises(InputError, match=says):
        read_enwik8(tmp_path / "text8")


def test_damage_is_found_up_to_the_next_known_hash(known, tmp_path):
    damaged = bytearray(RAW)
    damaged[1_500] ^= 1
    plain(tmp_path / "enwik8", damaged)
    with pytest.raises(InputError, match="is damaged between bytes 800 and 1,600"):
        read_enwik8(tmp_path / "enwik8", size=900)
    assert read_enwik8(tmp_path / "enwik8", size=800) == RAW[:800]


def test_too_little_text_is_refused(known, tmp_path):
    plain(tmp_path / "short", RAW[:799])
    with pytest.raises(InputError, match="at least 800 bytes of enwik8, but holds 799"):
        read_enwik8(tmp_path / "short")
    plain(tmp_path / "piece", RAW[:1_000])
    with pytest.raises(InputError, match="must hold the 1,001 bytes asked for, but holds 1,000; lower `size`"):
        read_enwik8(tmp_path / "piece", size=1_001)
    with pytest.raises(InputError, match="must give at least 5000 tokens, but gives"):
        tokenize_enwik8(tmp_path / "piece", length=5_000)


def test_settings_that_make_no_sense_are_refused(known, tmp_path):
    plain(tmp_path / "enwik8", RAW)
    with pytest.raises(InputError, match="size must be at most"):
        read_enwik8(tmp_path / "enwik8", size=len(RAW) + 1)
    with pytest.raises(InputError, match="size must be a whole number of at least 1, but is 0"):
        read_enwik8(tmp_path / "enwik8", size=0)
    with pytest.raises(InputError, match="length must be a whole number of at least 1, but is 0"):
        tokenize_enwik8(tmp_path / "enwik8", length=0)
    for missing in (tmp_path / "none", tmp_path):
        with pytest.raises(InputError, match="must be a text file, but"):
            read_enwik8(missing)


def test_a_piece_with_bytes_that_are_no_text_is_refused(known, tmp_path):
    broken = bytearray(RAW[:1_500])
    broken[broken.index(b"cat", 900)] = 0xFF
    plain(tmp_path / "piece", broken)
    with pytest.raises(InputError, match="must be UTF-8 text, but is not at byte 9"):
        tokenize_enwik8(tmp_path / "piece", length=8)


def test_sequences_are_the_cleaned_pages_in_order(known, tmp_path):
    plain(tmp_path / "enwik8", RAW)
    tokens = tokenize_enwik8(tmp_path / "enwik8", length=16)
    text = "\n\n".join(f"The cat nö. {number:05d} sat." for number in range(40)).encode()
    assert decode(tokens.sequences.flatten()) == text[: len(text) // 16 * 16]
    assert tokens.sequences.shape == (len(text) // 16, 16)
    assert tokens.vocabulary == N_IDS == 207
    assert tokens.counts[PAD] == tokens.counts[MASK] == 0
    assert tokens.counts[encode(b"T")[0]] == 40
    assert tokens.sha256 != tokenize_enwik8(tmp_path / "enwik8", length=16, size=1_000).sha256


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_small_models_take_the_sequences(kind, known, tmp_path):
    plain(tmp_path / "enwik8", RAW)
    tokens = tokenize_enwik8(tmp_path / "enwik8", length=16)
    model = small_model(kind, tokens.vocabulary, layers=1, width=32, length=16, mask=MASK, seed=0)
    batch = batch_for(kind, tokens.sequences[:4], MASK, 0.3, torch.Generator().manual_seed(0))
    assert model(**batch).loss.isfinite()


def test_the_symbols_are_205_bytes_that_spell_utf8():
    assert len(SYMBOLS) == len(set(SYMBOLS)) == 205
    assert list(SYMBOLS) == sorted(SYMBOLS)
    # A character beyond ASCII has one first byte, and those after it are the same 64 in all characters.
    first = [byte for byte in SYMBOLS if byte >= 0xC0]
    assert bytes(range(0x80, 0xC0)) in SYMBOLS
    assert {len(chr(code).encode()) for code in (0xE9, 0x20AC, 0x10330)} == {2, 3, 4}
    assert all(chr(code).encode()[0] in first for code in (0xE9, 0x219, 0x780, 0x20AC, 0x10330))


@given(st.text())
def test_ids_spell_the_text_again(text):
    spelled = spell(text)
    assert decode(encode(spelled)) == spelled
    assert spelled.decode() == "".join(c for c in text if set(c.encode()) <= set(SYMBOLS))


def test_ids_follow_the_special_tokens_and_stay_below_their_number():
    ids = encode(SYMBOLS)
    assert ids.tolist() == list(range(2, 207))
    assert decode(torch.tensor([PAD, *encode(b"a").tolist(), MASK])) == b"a"
    assert decode(torch.tensor([], dtype=torch.int64)) == encode(b"").numpy().tobytes() == b""


def test_what_has_no_symbol_is_refused():
    with pytest.raises(InputError, match="byte 1 is 0x00; `spell` leaves such characters out"):
        encode(b"a\0")
    with pytest.raises(InputError, match="ids must be from 0 to 206, but are from 3 to 207"):
        decode(torch.tensor([3, 207]))
    with pytest.raises(InputError, match="must be Unicode, but has"):
        spell("a\ud800")


def test_references_to_characters_without_symbols_are_left_out():
    assert clean_enwik8(PAGE.replace(b"%05d", b"&amp;#127;&amp;#1920;&amp;#57344;")) == "The cat nö. ހ sat.".encode()


@real
def test_the_real_piece_is_recognised_and_cleaned():
    raw = read_enwik8(PIECE, size=2_000_000)
    assert len(raw) == 2_000_000
    assert set(raw) <= set(SYMBOLS)
    text = clean_enwik8(raw).decode()
    assert text.startswith("Anarchism originated as a term of ")
    assert 0.6 < len(text) / len(raw) < 0.75
    assert not any(mark in text for mark in ("[[", "]]", "{{", "}}", "''", "<ref", "&nbsp;", "[http", "Image:"))
    words = text.split()
    assert np.mean([word.strip('.,;:()"').isalpha() for word in words]) > 0.85


@real
def test_the_first_bytes_have_the_hashes_in_the_code():
    with lzma.open(PIECE) as file:
        raw = file.read()
    known = {place: expected for place, expected in PREFIXES.items() if place <= len(raw)}
    assert len(known) == 5
    assert known == {place: hashlib.sha256(raw[:place]).hexdigest() for place in known}
    assert set(SYMBOLS) - set(raw) == {0xC8, 0xDE, 0xF0}
    assert set(raw) < set(SYMBOLS)
