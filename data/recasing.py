"""English in lower case, cut into words, written as people write it.

Some corpora have `don 't tell emi .` where others have `Don't tell Emi.`. To learn
from both as one language, spaces are closed by rule, and a word gets the capitals that
it has most often inside the sentences of a text that kept them (truecasing; Lita et al.
2003).

    python -m data.recasing kept.tsv lowered.tsv recased.tsv
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from data.command import run
from data.corpus import read_pairs

_WORD = re.compile(r"[^\W\d_]+(?:[.-][^\W\d_]+)*")
_BEGINNING = re.compile(r"(?:^|(?<!\.\w)[.?!] +|[,:] \")\W*")
"""What stands before the first word of a sentence, or of one that is quoted."""
_FIRST_LETTER = re.compile(rf"(?:{_BEGINNING.pattern})[^\W\d_]")
_BEFORE_MARK = re.compile(r" (?=[.,;:?!]+(?: |$))")
_BEFORE_ENDING = re.compile(r" (?='(?:s|t|m|ll|ve|d|re|clock)\b)")
_AFTER_PLURAL = re.compile(r"(?<=s) '(?= [a-z])")  # ten minutes' walk
_QUOTATION = re.compile(r"(?<!\S)(''|') (.+?) \1(?!\w)")


def usual_forms(sentences: Iterable[str]) -> dict[str, str]:
    """Return how words with capitals are mostly written, by their lower case.

    The first word of a sentence says nothing of that, nor does a quotation's.
    """
    forms: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for sentence in sentences:
        beginnings = {match.end() for match in _BEGINNING.finditer(sentence)}
        for word in _WORD.finditer(sentence):
            if word.start() not in beginnings:
                forms[word[0].lower()][word[0]] += 1
    usual = {word: found.most_common(1)[0][0] for word, found in forms.items()}
    return {word: form for word, form in usual.items() if form != word}


def recase(sentence: str, usual: Mapping[str, str]) -> str:
    """Return a sentence in lower case, cut into words, as people write it."""
    text = _BEFORE_MARK.sub("", _BEFORE_ENDING.sub("", sentence))
    text = _AFTER_PLURAL.sub("'", text)
    text = _QUOTATION.sub(lambda match: f'"{match[2]}"', text)
    text = _WORD.sub(lambda match: usual.get(match[0], match[0]), text)
    return _FIRST_LETTER.sub(lambda match: match[0][:-1] + match[0][-1].upper(), text)


def main(arguments: list[str] | None = None) -> None:
    """Write the pairs of a corpus with its English recased."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("kept", help="corpus whose English has its capitals")
    parser.add_argument("lowered", help="corpus of English in lower case, cut apart")
    parser.add_argument("out", type=Path, help="the .tsv to write")
    given = parser.parse_args(arguments)
    usual = usual_forms(source for source, _ in read_pairs(given.kept))
    rows = (
        # A table may have tabs and line ends in its texts.
        " ".join(recase(source, usual).split()) + "\t" + " ".join(target.split())
        for source, target in read_pairs(given.lowered)
    )
    beside = given.out.with_name(f".{given.out.name}.tmp")
    try:
        beside.write_bytes("".join(f"{row}\n" for row in rows).encode())
        beside.replace(given.out)
    finally:
        beside.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(run(main, "data.recasing"))
