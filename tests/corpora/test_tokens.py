import pytest

from tangentlens import InputError
from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.tokens import MASK, PAD, tokenize, train_tokenizer

TEXT = builtin_text()[:30_000]


def test_tokens_spell_the_text_again():
    tokenizer = train_tokenizer(TEXT, 500)
    assert tokenizer.decode(tokenizer.encode("Grüße, the if statement\n").ids) == "Grüße, the if statement\n"
    assert [tokenizer.token_to_id(name) for name in ("[PAD]", "[MASK]")] == [PAD, MASK]
    assert tokenizer.get_vocab_size() == 500


def test_sequences_are_the_text_cut_in_order_and_counted():
    tokens = tokenize(TEXT, 500, 32)
    ids = train_tokenizer(TEXT, 500).encode(TEXT).ids
    assert tokens.sequences.flatten().tolist() == ids[: tokens.sequences.numel()]
    assert len(ids) - tokens.sequences.numel() < 32
    assert int(tokens.counts[ids[5]]) == ids[: tokens.sequences.numel()].count(ids[5])
    assert tokens.counts[PAD] == tokens.counts[MASK] == 0


def test_the_hash_is_of_the_tokens():
    assert tokenize(TEXT, 500, 32).sha256 == tokenize(TEXT, 500, 32).sha256
    assert tokenize(TEXT, 500, 32).sha256 != tokenize(TEXT + "and more words to fill a row " * 9, 500, 32).sha256


def test_the_frequencies_of_the_builtin_text_are_zipfian():
    counts = tokenize(builtin_text(), 2048, 64).counts.sort(descending=True).values
    ranks = [10, 100, 1000]
    assert all(0.3 < int(counts[r]) * r / (int(counts[100]) * 100) < 3 for r in ranks)


def test_too_short_a_text_is_refused():
    with pytest.raises(InputError, match="at least 64 tokens, but gives"):
        tokenize("hello", 300, 64)
