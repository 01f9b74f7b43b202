"""What the cleaning of enwik8 leaves, and how long it takes. Usage: `python benchmarks/enwik8.py FILE`."""

import sys
import time
from pathlib import Path

from tangentlens.corpora.enwik8 import clean_enwik8, read_enwik8
from tangentlens.corpora.symbols import SYMBOLS
from tangentlens.corpora.wikitext import clean, pages


def main(path: Path) -> None:
    begin = time.perf_counter()
    raw = read_enwik8(path)
    read = time.perf_counter()
    text = clean_enwik8(raw)
    cleaned = time.perf_counter()
    print(f"raw: {len(raw):,} bytes, {len(set(raw))} distinct; read and verified in {read - begin:.1f} s")
    print(f"cleaned: {len(text):,} bytes, {len(set(text))} distinct; cleaned in {cleaned - read:.1f} s")
    print(f"bytes of raw text that are no symbol: {len(raw.translate(None, SYMBOLS)):,}")
    texts = [clean(page) for page in pages(raw)]
    unknown = sum(bool(character.encode().translate(None, SYMBOLS)) for character in "".join(texts))
    print(f"pages: {len(texts):,}, {sum(map(bool, texts)):,} with text; characters left out by `spell`: {unknown:,}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
