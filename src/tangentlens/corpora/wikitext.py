"""Wikitext to plain text: the pages of a MediaWiki dump without markup, code, media and HTML (docs/enwik8.md)."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

from tangentlens.errors import InputError

_PAGE = b'<text xml:space="preserve">'
_PAGE_END = b"</text>"

# Stands where something was removed: a line that begins with it did not begin with the space that may follow.
_GAP = "\0"

_REDIRECT = re.compile(r"\s*#REDIRECT\b", re.IGNORECASE)

# Elements whose content is no running text.
_REMOVED = "code|pre|nowiki|math|source|syntaxhighlight|gallery|timeline|hiero|ref|script|style"
_COMMENT_OR_ELEMENT = re.compile(
    rf"<!--.*?(?:-->|\Z)|<({_REMOVED})\b[^<>]*?(?:/>|>.*?</\1\s*>)", re.DOTALL | re.IGNORECASE
)

# Wiki tables begin and end at the beginning of a line. `|}}` ends a template.
_BRACKET = re.compile(
    r"(?P<template>\{\{)|(?P<template_end>\}\})"
    rf"|^[ \t:*{_GAP}]*(?P<table>\{{\|)|^[ \t{_GAP}]*(?P<table_end>\|\}}(?!\}}(?!\}})))"
    r"|(?P<html><table\b[^<>]*>)|(?P<html_end></table\s*>)",
    re.MULTILINE | re.IGNORECASE,
)

# The innermost links, in which only single brackets are nested.
_LINK = re.compile(r"\[\[([^\[\]]*(?:\[[^\[\]]+\][^\[\]]*)*)\]\]")
_MEDIA_OR_CATEGORY = re.compile(r"\s*(?:image|file|media|category)\s*:", re.IGNORECASE)
# The prefix of an interlanguage link is the code of a language, such as `de`, `ast` or `zh-min-nan`.
_LANGUAGE = re.compile(r"\s*(?:[a-z]{2,3}(?:-[a-z]+)*|simple|tokipona|nostalgia)\s*:")

_ADDRESS = r"(?:(?:https?|ftp|irc|gopher|telnet)://|mailto:|news:)"
_EXTERNAL_LINK = re.compile(rf"\[{_ADDRESS}[^\s\[\]]*[ \t]*([^\[\]\n]*)\]", re.IGNORECASE)
_BARE_ADDRESS = re.compile(rf"\b{_ADDRESS}[^\s<>\[\]{{}}|\"]*[^\s<>\[\]{{}}|\".,;:!?')]", re.IGNORECASE)

_BLOCK_TAG = re.compile(
    r"</?(?:br|p|div|li|ul|ol|dl|dt|dd|tr|td|th|hr|h[1-6]|blockquote|center|caption)\b[^<>]*>", re.IGNORECASE
)
_TAG = re.compile(r"</?[a-z][a-z0-9]*(?:\s[^<>]*)?/?>", re.IGNORECASE)

# MediaWiki shows a line that begins with a space as it is typed, which serves for code and diagrams. Lines that
# begin with a pipe or `{|` remain of a table that is not closed.
_PREFORMATTED_OR_CELL = re.compile(rf"^(?: |[:*{_GAP}]*\{{?\|).*$", re.MULTILINE)
_RULE = re.compile(rf"^{_GAP}*-{{4,}}", re.MULTILINE)
_HEADING = re.compile(rf"^{_GAP}*=+[ \t]*(.*?)[ \t]*=+[ \t{_GAP}]*$", re.MULTILINE)
_BULLET = re.compile(rf"^{_GAP}*[*#:;]+[ \t]*", re.MULTILINE)
# Parentheses of which the content was removed.
_HOLLOW = re.compile(rf" ?\([ ,;]*{_GAP}[ ,;{_GAP}]*\)")
_SWITCH = re.compile(r"__[A-Z]+__")
_QUOTES_OR_LEFT_OVER = re.compile(r"'{2,}|\[\[|\]\]|\{\{|\}\}")

# Without its semicolon, `&para` in an address would be a paragraph sign.
_ENTITY = re.compile(r"&(?:\w+|#\d+|#x[0-9a-f]+);", re.IGNORECASE)


def pages(dump: bytes) -> Iterator[str]:
    """Yield the wikitext of every page of an XML dump; a page that the end of the dump cuts is left out.

    Args:
        dump: The dump, or a leading piece of it, in UTF-8.

    >>> list(pages(b'<text xml:space="preserve">1 &lt; 2</text><text xml:space="preserve">cut'))
    ['1 < 2']
    """
    end = 0
    while (start := dump.find(_PAGE, end)) >= 0:
        start += len(_PAGE)
        if (end := dump.find(_PAGE_END, start)) < 0:
            return
        try:
            text = dump[start:end].decode()
        except UnicodeDecodeError as error:
            raise InputError(
                f"a dump must be UTF-8 text, but is not at byte {start + error.start:,} ({error.reason}); get it again"
            ) from error
        yield text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")


def clean(wikitext: str) -> str:
    """Return the plain text of a page; of a redirect, nothing.

    Args:
        wikitext: The source of the page, as `pages` yields it.

    >>> clean("'''Anarchism''' is a {{tone}}[[view (mind)|view]] of [[state]]s&mdash;see [http://a.org this].")
    'Anarchism is a view of states—see this.'
    """
    if _REDIRECT.match(wikitext):
        return ""
    text = _COMMENT_OR_ELEMENT.sub(_GAP, wikitext)
    text = _without_templates_and_tables(text)
    text = _without_links(text)
    text = _TAG.sub(_GAP, _BLOCK_TAG.sub("\n" + _GAP, text))
    text = _without_line_markup(text)
    return _without_spare_space(_ENTITY.sub(lambda entity: html.unescape(entity[0]), text))


def _without_templates_and_tables(text: str) -> str:
    """Return the text without the outermost templates and tables, and all that is in them.

    What is never closed stays, and what closes nothing too.
    """
    opened: list[tuple[str, int]] = []
    removed: list[tuple[int, int]] = []
    for mark in _BRACKET.finditer(text):
        kind = str(mark.lastgroup)
        if not kind.endswith("_end"):
            opened.append((kind, mark.start()))
            continue
        partners = [place for place, (other, _) in enumerate(opened) if other == kind.removesuffix("_end")]
        if partners:
            start = opened[partners[-1]][1]
            del opened[partners[-1] :]
            while removed and removed[-1][0] > start:
                removed.pop()
            removed.append((start, mark.end()))
    kept = [0, *(place for span in removed for place in span), len(text)]
    return _GAP.join(text[start:end] for start, end in zip(kept[::2], kept[1::2], strict=True))


def _without_links(text: str) -> str:
    """Return the text with links replaced by what a reader sees of them."""
    found = 1
    # Links may stand in the captions of images, so they are replaced from the inside out.
    while found:
        text, found = _LINK.subn(_visible, text)
    text = _EXTERNAL_LINK.sub(lambda link: link[1] or _GAP, text)
    return _BARE_ADDRESS.sub(_GAP, text)


def _visible(link: re.Match[str]) -> str:
    """Return what a reader sees of a link: its label or its target, and of media and categories nothing."""
    target, _, label = link[1].partition("|")
    if _MEDIA_OR_CATEGORY.match(target) or _LANGUAGE.match(target):
        return _GAP
    return label or target.strip().removeprefix(":")


def _without_line_markup(text: str) -> str:
    """Return the text without preformatted lines, rules, the marks of headings and lists, and emphasis."""
    text = _RULE.sub(_GAP, _PREFORMATTED_OR_CELL.sub("", text))
    text = _HOLLOW.sub("", _BULLET.sub("", _HEADING.sub(r"\1", text)))
    return _QUOTES_OR_LEFT_OVER.sub("", _SWITCH.sub("", text))


def _without_spare_space(text: str) -> str:
    """Return the text with single spaces, no space at the ends of lines, and at most one blank line in a row."""
    text = re.sub("[ \t\xa0]+", " ", text.replace(_GAP, ""))
    return re.sub(r"\n{3,}", "\n\n", re.sub(r" ?\n ?", "\n", text)).strip()
