import pytest
from hypothesis import given
from hypothesis import strategies as st

from tangentlens import InputError
from tangentlens.corpora.wikitext import clean, pages

RULES = {
    "a redirect": ("#REDIRECT [[Algeria]]{{R from CamelCase}}", ""),
    "a redirect in small letters": ("\n#redirect [[Algeria]]", ""),
    "a comment": ("a<!-- not\n{{shown -->b", "ab"),
    "a comment that is not closed": ("a<!-- b", "a"),
    "code": ("use <code>x = [1]</code>, please", "use , please"),
    "code of several lines": ("a\n<pre>\nb\n\nc\n</pre>\nd", "a\n\nd"),
    "wikitext shown as it is": ("a <nowiki>[[b]]</nowiki> c", "a c"),
    "a formula with braces": (r"let <math>\frac{{a}}{b}</math> be", "let be"),
    "source with a language": ('a<source lang="c">int b;</source>c', "ac"),
    "a gallery": ("a\n<gallery>\nImage:B.jpg|c\n</gallery>\nd", "a\n\nd"),
    "a footnote": ('a<ref name="b" />c<ref name="b">d [[e]]</ref>f', "acf"),
    "an element that closes itself": ("a<nowiki/>b <code>c</code>", "ab"),
    "only its own tag closes an element": ("a<nowiki></b>c</nowiki>d", "ad"),
    "the first of two elements decides": ("a<nowiki><pre></nowiki>b<pre>c</pre>d", "abd"),
    "a template": ("a {{b|c=[[d]]|e}} f", "a f"),
    "nested templates": ("a{{b|{{c|{{d}}}}|{{e}}}}f", "af"),
    "a template of several lines that ends with a pipe": ("{{b\n|c=1\n|}}\nd", "d"),
    "a template that is not closed": ("a {{b\n\nc {{d}} e", "a b\n\nc e"),
    "what closes no template": ("a }} b {{c}} d", "a b d"),
    "a table": ('a\n{| class="b"\n|-\n! c\n| d\n|}\ne', "a\n\ne"),
    "nested tables with templates": ("a\n{|\n|\n{| x\n| {{b|}}\n|}\n| c\n|}\nd", "a\n\nd"),
    "a table in a template": ("a {{b|\n{|\n|c\n|}\n}} d", "a d"),
    "a template in a table that it does not close": ("a\n{|\n| {{b\n|}\nc }} d", "a\n\nc d"),
    "a table that is not closed": ("a\n{| b\n|-\n| c\n\nd | e", "a\n\nd | e"),
    "an HTML table": ("a<table border=1><tr><td>b<table><td>c</table></table>d", "ad"),
    "a link": ("[[Anabaptist]]s and [[anarchism|anarchists]]", "Anabaptists and anarchists"),
    "a link with an empty label": ("[[a (b)|]]", "a (b)"),
    "a link to a category": ("see [[:Category:Birds]]", "see Category:Birds"),
    "a category": ("a\n[[Category:Birds|b]]\n[[category:Dogs]]", "a"),
    "interlanguage links": ("a [[de:b]] [[zh-min-nan:c]] [[simple:d]]", "a"),
    "links that only look like that": ("[[Star Trek: Voyager]], [[AD: a year]]", "Star Trek: Voyager, AD: a year"),
    "an image": ("[[Image:A.jpg|thumb|b]] c", "c"),
    "a file": ("a [[ file : A.jpg ]] b", "a b"),
    "an image with links in its caption": ("a [[Image:B.jpg|c [[d|e]] [http://f g] [[h]]]] i", "a i"),
    "a caption with brackets": ("a [[Image:B.jpg|the [first] c]] d", "a d"),
    "brackets of a quotation": ("[f]rom this [[premise]]", "[f]rom this premise"),
    "an external link": ("see [http://a.org/b?c=d&e this page] or [http://f.org]", "see this page or"),
    "a bare address": ("(at http://a.org/b?c=d), or ftp://e.org.", "(at ), or ."),
    "bold and italic": ("'''a''' ''b'' '''''c''''' don't", "a b c don't"),
    "headings": ("== a ==\nb\n===c===\n= d = e", "a\nb\nc\n= d = e"),
    "lists": ("* a\n** b\n#c\n:;d\ne * f", "a\nb\nc\nd\ne * f"),
    "a horizontal line": ("a\n----\n-- b", "a\n\n-- b"),
    "a switch": ("__NOTOC__\na __b__", "a __b__"),
    "preformatted lines": ("a\n int main() {\n  return 0;\n }\nb", "a\n\nb"),
    "a line whose beginning was removed": ("a\n{{b}} c\n[[Image:D.jpg]] e\n<b> f</b>", "a\nc\ne\nf"),
    "tags": ('<font color="red">a</font><sub>2</sub> <i>b</i>', "a2 b"),
    "a tag that breaks the line": ("a<br />b<BR>c<p>d", "a\nb\nc\nd"),
    "no tags": ("1 < 2 and 3 > 2, <- and <a@b.c>", "1 < 2 and 3 > 2, <- and <a@b.c>"),
    "entities": ("&eacute;&#945;&#x3b2;&nbsp;&mdash; AT&T &lt;b&gt;", "éαβ — AT&T <b>"),
    "an entity without semicolon": ("a&para=1 &bogus;", "a&para=1 &bogus;"),
    "escaped markup": ("&#91;&#91;a]] &#39;&#39;b", "[[a ''b"),
    "parentheses that became empty": ("Athens ({{IPA|a}}, [[Image:B.png]]) and f()", "Athens and f()"),
    "case, digits and punctuation": ('In 1984, "A-B" (50%; $3)!', 'In 1984, "A-B" (50%; $3)!'),
    "space": ("a  b\t c \n\n\n\n d", "a b c"),
}


@pytest.mark.parametrize(("wikitext", "text"), RULES.values(), ids=RULES)
def test_each_rule(wikitext, text):
    assert clean(wikitext) == text


def dump(*texts):
    return b"".join(b'<page><title>t</title>\n<text xml:space="preserve">%s</text>\n</page>' % text for text in texts)


def test_pages_are_what_the_dump_escapes():
    found = list(pages(dump(b"&lt;b&gt; &quot;a&quot; &amp;amp; &amp;lt;", "é".encode(), b"")))
    assert found == ['<b> "a" &amp; &lt;', "é", ""]


def test_a_page_that_is_cut_is_left_out():
    whole = dump(b"first", "zweite Grüße".encode())
    assert list(pages(whole)) == ["first", "zweite Grüße"]
    assert list(pages(whole[: whole.index("ü".encode()) + 1])) == ["first"]
    assert list(pages(b"no dump")) == []


def test_bytes_that_are_no_text_are_refused():
    bad = dump(b"fine", b"not \xff fine")
    with pytest.raises(InputError, match=f"must be UTF-8 text, but is not at byte {bad.index(0xFF)}"):
        list(pages(bad))


MARKS = [
    "{{",
    "}}",
    "{|",
    "|}",
    "[[",
    "]]",
    "|",
    "''",
    "<nowiki>",
    "</nowiki>",
    "<!--",
    "-->",
    "=",
    "&#0;",
    "\n",
    " ",
    "a",
]


@given(
    st.lists(st.sampled_from([*MARKS, "[http://b ", "Image:", "<table>", "</table>", "{", "}", "*", "\0"]), max_size=40)
)
def test_any_muddle_of_marks_gives_tidy_text(marks):
    text = clean("".join(marks))
    assert "\0" not in text
    assert text == text.strip()
    assert "\n\n\n" not in text
