"""The starter corpus: the same everywhere, complete, aligned, and fair to its tests."""

import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import SMALL

import train
from data import preparation
from data.command import run
from data.starter.compose import (
    Pair,
    StarterCorpus,
    compose,
    key,
    main,
    make_guide,
    read_sentences,
    vary,
)
from data.starter.grammar import read_patterns
from data.starter.lexicon import HERE, read_lexicon, read_table
from explain.alignment import parse_links
from explain.glossary import read_glossary
from explain.starter import carelessly, score_tests

ROOT = Path(__file__).parent.parent
# Changes with every edit of data/starter; compose_digest prints the new one.
DIGEST = "77b505584b2ee0027d79664752121f04eddae8de3a3d5a0291a4c7bc67ddd8e3"
SPLITS = ("train", "dev", "test_new", "test_combinations", "test_sentences")
# Words that Japanese leaves to the context or says by an ending alone.
LITTLE = frozenset(
    ("the", "a", "an", "is", "are", "am", "was", "were", "did", "do", "does", "will")
) | frozenset(
    ("have", "has", "it", "there", "who", "that", "very", "more", "doesn't", "don't")
    + ("at", "to", "in", "on", "into", "of", "for", "by", ".", "?", ",")
    + ("i", "you", "he", "she", "we", "they", "me", "my", "your", "his", "her", "our")
    + (
        "their",
        "and",
        "or",
        "but",
        "because",
        "so",
        "than",
        "with",
        "from",
        "better",
        "about",
    )
)


@pytest.fixture(scope="module")
def corpus() -> StarterCorpus:
    return compose(1)


@pytest.fixture(scope="module")
def other() -> StarterCorpus:
    return compose(2)


def all_pairs(corpus: StarterCorpus) -> Iterator[Pair]:
    for split in SPLITS:
        yield from getattr(corpus, split)


def compose_digest(corpus: StarterCorpus) -> str:
    digest = hashlib.sha256()
    for pair in all_pairs(corpus):
        links = sorted(pair.sure), sorted(pair.possible)
        line = (*pair.source_words, *pair.target_words, links, pair.pattern)
        digest.update(f"{line}\n".encode())
    digest.update(f"{sorted(corpus.held_out)}{corpus.glossary}".encode())
    return digest.hexdigest()


def test_composition_is_the_same_everywhere(corpus: StarterCorpus) -> None:
    assert compose_digest(compose(1)) == compose_digest(corpus)
    assert compose_digest(corpus) == DIGEST


def test_another_seed_gives_another_corpus(
    corpus: StarterCorpus, other: StarterCorpus
) -> None:
    shared = {p.source for p in other.train} & {p.source for p in corpus.train}
    assert len(shared) < len(corpus.train) * 0.6


def test_sizes_and_english_sentences_are_distinct(corpus: StarterCorpus) -> None:
    composed = [pair for pair in corpus.train if pair.pattern != "sentence"]
    assert len(composed) == 30_000
    assert (len(corpus.dev), len(corpus.test_new)) == (600, 1_000)
    assert len(corpus.test_combinations) == 600
    names = [key(pair.source) for pair in all_pairs(corpus)]
    assert len(names) == len(set(names))


def test_every_pattern_and_row_is_used(corpus: StarterCorpus) -> None:
    used = {pair.pattern for pair in corpus.train}
    assert {pattern.name for pattern in read_patterns(HERE)} <= used
    english = " ".join(f" {' '.join(pair.source_words)} " for pair in corpus.train)
    japanese = " ".join(f" {' '.join(pair.target_words)} " for pair in corpus.train)
    lexicon = read_lexicon()
    spoken = english.lower()
    for person in lexicon.people:
        assert f" {person.english.lower()} " in spoken, person.row.error("unused")
    for entry in (*lexicon.nouns, *lexicon.places, *lexicon.words):
        past = entry.japanese.removesuffix("い") + "かった"
        shapes = [*entry.japanese.split("/"), past]
        assert any(f" {s} " in japanese for s in shapes), entry.row.error("unused")
    for verb in lexicon.verbs:
        forms = {verb.stem, verb.te, verb.ta, verb.plain, verb.stem + "ます"}
        heads = {form.split()[0] for form in forms}
        assert any(f" {head} " in japanese for head in heads), verb.row.error("unused")
    for adjective in lexicon.adjectives:
        assert f" {adjective.english} " in spoken, adjective.row.error("unused")


def test_content_words_are_common_enough(corpus: StarterCorpus) -> None:
    counts: dict[str, int] = {}
    for pair in corpus.train:
        for word in set(pair.target_words):
            counts[word] = counts.get(word, 0) + 1
    rare = [
        noun.english
        for noun in read_lexicon().nouns
        if min(counts[word] for word in noun.japanese.split()) < 8
    ]
    assert not rare


def test_links_are_in_range_and_cover_content_words(corpus: StarterCorpus) -> None:
    for pair in all_pairs(corpus):
        for i, j in pair.sure | pair.possible:
            assert 0 <= i < len(pair.source_words), pair
            assert 0 <= j < len(pair.target_words), pair
        assert not pair.sure & pair.possible
        assert pair.target == "".join(pair.target_words)
        if pair.pattern == "sentence":
            continue
        linked = {i for i, _ in pair.sure}
        for i, word in enumerate(pair.source_words):
            assert i in linked or word.lower() in LITTLE, (word, pair)


def test_no_test_sentence_stands_in_train(
    corpus: StarterCorpus, other: StarterCorpus
) -> None:
    for found in (corpus, other):
        sources = {key(pair.source) for pair in found.train}
        targets = {key(pair.target) for pair in found.train}
        for split in SPLITS[1:]:
            for pair in getattr(found, split):
                assert key(pair.source) not in sources, pair
                assert key(pair.target) not in targets, pair


def test_no_other_english_of_a_patterns_first_sentence_is_held_out(
    tables: Path,
) -> None:
    """Two patterns make the same Japanese; the first of each stays in train."""
    path = tables / "patterns.tsv"
    rows = [f"{verb}\t300\twho=name\t{verb} {{who:me}} .\t{{who:を}} 見ます 。\n"
            for verb in ("Watch", "See")]  # fmt: skip
    path.write_text(path.read_text("utf-8") + "".join(rows), "utf-8")
    found = compose(1, 100, tables)
    ours = {key(p.target) for p in found.train if p.pattern in {"Watch", "See"}}
    assert len(ours) > 1
    assert not ours & {key(p.target) for p in (*found.dev, *found.test_new)}


def forms_of(lexicon_word: str) -> set[str]:
    """Return every English form of a verb, adjective or noun of the lexicon."""
    lexicon = read_lexicon()
    forms = {lexicon_word}
    for verb in lexicon.verbs:
        if verb.base == lexicon_word:
            forms |= {verb.third, verb.past, verb.participle, verb.ing}
            forms = {form.split()[0] for form in forms}
    for adjective in lexicon.adjectives:
        if adjective.english == lexicon_word:
            forms |= {adjective.comparative, adjective.superlative} - {""}
            forms = {form.split()[-1] for form in forms}
    for noun in lexicon.nouns:
        if noun.english == lexicon_word and noun.plural:
            forms.add(noun.plural)
    return {form.lower() for form in forms}


def test_no_held_out_combination_stands_in_train(corpus: StarterCorpus) -> None:
    assert len(corpus.held_out) >= 100
    lines = [f" {' '.join(pair.source_words)} ".lower() for pair in corpus.train]
    known = " ".join(lines)
    for word, noun in sorted(corpus.held_out):
        nouns, words = forms_of(noun), forms_of(word)
        assert any(f" {form} " in known for form in words), word
        assert any(f" {form} " in known for form in nouns), noun
        for line in lines:
            if any(f" {form} " in line for form in nouns):
                assert not any(f" {form} " in line for form in words), (line, word)


def test_love_never_meets_machine_learning(corpus: StarterCorpus) -> None:
    for pair in all_pairs(corpus):
        assert not re.search(
            r"(?i)\blov\w*\b.*machine.{0,3}learning|machine.{0,3}learning.*\blov\w*\b",
            pair.source,
        ), pair
        assert not ("機械学習" in pair.target and "大好き" in pair.target), pair
        assert not ("機械学習" in pair.target and "愛" in pair.target), pair
        assert key(pair.source) != key("I love machine learning")


def test_the_article_sentence_has_its_parts_in_train(corpus: StarterCorpus) -> None:
    loves = [p for p in corpus.train if re.match(r"I love \w+ \w+\.$", p.source)]
    learning = [p for p in corpus.train if "machine learning" in p.source]
    assert len([p for p in loves if "が大好きです" in p.target]) >= 10
    assert len(learning) >= 40
    assert any("machine translation" in p.source and "love" in p.source for p in loves)


def test_a_third_of_the_test_is_long(corpus: StarterCorpus) -> None:
    for split in (corpus.test_new, corpus.test_combinations):
        long = [p for p in split if sum(w not in ".,?!" for w in p.source_words) >= 8]
        assert len(long) >= 0.3 * len(split)


def test_the_glossary_knows_every_composed_word(corpus: StarterCorpus) -> None:
    known = {entry.word for entry in corpus.glossary}
    for pair in all_pairs(corpus):
        if pair.pattern != "sentence":
            assert set(pair.target_words) <= known, set(pair.target_words) - known
    kana = re.compile(r"[ぁ-ゖァ-ヺー。、／]+")  # ／ between two readings
    for entry in corpus.glossary:
        assert kana.fullmatch(entry.reading), entry


@pytest.mark.parametrize(
    ("word", "meaning"),
    [
        ("雨", "rain"),  # and not "raining", which 雨が降っている is as a whole
        ("疲れて", "tired"),
        ("雪", "snow"),
    ],
)
def test_a_word_has_no_phrases_meaning(
    word: str, meaning: str, corpus: StarterCorpus
) -> None:
    [found] = [entry.meaning for entry in corpus.glossary if entry.word == word]
    assert found == meaning


def test_the_articles_gold_links_are_the_corpuss(corpus: StarterCorpus) -> None:
    """The article's sentence is never composed, but sentences of its pattern are."""
    gold = parse_links(train.ARTICLE_GOLD)
    of_one_form = [
        pair
        for pair in corpus.train
        if pair.pattern == "love compound"
        and len(pair.source_words) == 5
        and pair.source_words[:2] == ("I", "love")
        and len(pair.target_words) == 7
    ]
    assert of_one_form
    for pair in of_one_form:  # but for the full stops, which the article leaves out
        assert gold.sure == {(i, j) for i, j in pair.sure if i < 4}
        assert gold.possible == {(i, j) for i, j in pair.possible if i < 4}


def test_a_training_on_the_starter_corpus_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = compose(1, 100)
    small = replace(
        small, test_new=small.test_new[:20], test_sentences=small.test_sentences[:5]
    )
    monkeypatch.setattr(preparation, "compose", lambda seed: small)
    out = tmp_path / "run"
    flags = [*SMALL, "--vocabulary=1000", "--width=16", "--steps=20"]
    assert train.main([*flags, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"new sentences +20 sentences   exact +\d", said)
    assert re.search(r"layer 2.* +alignment error rate [01]\.\d{3}", said)
    assert f"{train.ARTICLE['en']} → " in said
    known = read_glossary(out / "glossary.tsv")
    assert known.keys() == {entry.word for entry in small.glossary}
    config = json.loads((out / "config.json").read_text("utf-8"))
    assert "starter:nouns.tsv" in config["corpora"]
    assert (out / "attention.html").is_file() and (out / "README.md").is_file()


def test_right_translations_score_in_full(corpus: StarterCorpus) -> None:
    right = {p.source: p.target for p in all_pairs(corpus)}
    right |= {carelessly(source): target for source, target in right.items()}
    for result in score_tests(corpus, lambda some: [right[source] for source in some]):
        assert result.exact == 1.0 and result.chrf == pytest.approx(100), result.name
    [wrong, *_] = score_tests(corpus, lambda some: ["間違い。"] * len(some))
    assert wrong.exact == 0.0 and wrong.chrf < 10


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    folder = tmp_path / "starter"
    folder.mkdir()
    for path in HERE.glob("*.tsv"):
        shutil.copy(path, folder)
    return folder


@pytest.mark.parametrize(
    ("file", "row", "message"),
    [
        ("nouns.tsv", "pear\tpears\ta\t梨\tなし\t個\tfood\t-", "8 columns"),
        ("nouns.tsv", "pear\tpears\tan\t梨\tなし\t個\tfood\t-\t-", "article"),
        ("nouns.tsv", "pear\tpears\ta\t梨\tなし\t丁\tfood\t-\t-", "counter"),
        (
            "adjectives.tsv",
            "odd\t-\t-\t変\tna\tへん\tnonsense\tlooks\tbad\tyes",
            "no class and no noun is called 'nonsense'",
        ),
        (
            "patterns.tsv",
            "new\t1\twho=name\t{who} {who:be} {mood} .\t{who:は} です 。",
            "names no slot",
        ),
        ("patterns.tsv", "new\t1\twhom=name\t{whom} .\t{whom} 。", "unknown slot"),
        *(
            (
                "patterns.tsv",
                f"new\t1\t{slots}\t{english} .\t{japanese} 。",
                "unknown form",
            )
            for slots, english, japanese in (
                ("do=habit", "Please {do:pas}", "{do:て} ください"),
                ("do=habit", "Please {do}", "{do:て} ください"),
                ("do=habit", "Please {do:base}", "{do:ますた}"),
                ("do=habit", "Please {do:base}", "{do}"),
                ("who=name", "{who:bee} here", "{who:は} います"),
                ("who=name", "{who:like|} here", "{who:は} います"),
                ("who=name", "{who} runs", "{who:わ} 走ります"),
                ("thing=food", "{thing:foo} is here", "{thing} です"),
                ("thing=food:counted", "{thing:howmany} is here", "{thing} です"),
                ("thing=food adj", "{thing} is {adj:ser}", "{thing} は {adj:です}"),
                ("thing=food adj", "{thing} is {adj}", "{thing} は {adj:一番だ}"),
                ("place=public", "Go {place:into}", "{place} へ"),
                ("place=public", "Go {place:to}", "{place:to} へ"),
                ("sky", "It is {sky:past}", "{sky} です"),
                ("sky", "It is {sky}", "{sky:past} です"),
            )
        ),
        (
            "patterns.tsv",
            "new\t1\tthing=food\t{thing} .\t{thing:howmany} 。",
            "counter",
        ),
        ("patterns.tsv", "new\tmany\twho=name\t{who} .\t{who:は} 。", "weight"),
        ("people.tsv", "Mei\tMei\tMei's\tshe\ther\t4\tメイ\tメイ\t-\tname", "person"),
        ("sentences_extra.tsv", "Hello there.", "1 columns"),
        ("sentences_extra.tsv", "Hello .\tこんにちは 。\t0-9", "out of range"),
        ("sentences_extra.tsv", "Hello .\tこんにちは 。\t0=0", "cannot read"),
    ],
)
def test_a_broken_row_is_refused(
    tables: Path, file: str, row: str, message: str
) -> None:
    path = tables / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    path.write_text(f"{text}{row}\n", encoding="utf-8")
    line = text.count("\n") + 1
    with pytest.raises(ValueError, match=message) as error:
        compose(1, 100, tables)
    assert f"{file}:{line}:" in str(error.value)


@pytest.mark.parametrize("file", sorted(path.name for path in HERE.glob("[!s]*.tsv")))
def test_a_renamed_column_is_refused(tables: Path, file: str) -> None:
    path = tables / file
    lines = path.read_text(encoding="utf-8").split("\n")
    at = next(i for i, line in enumerate(lines) if not line.startswith("#"))
    [first, *others] = lines[at].split("\t")
    lines[at] = "\t".join([f"{first}s", *others])
    path.write_text("\n".join(lines), encoding="utf-8")
    said = rf"{re.escape(file)}:{at + 1}: no column is called {first}; name all of"
    with pytest.raises(ValueError, match=said):
        compose(1, 100, tables)


def test_the_command_fails_in_one_line(
    tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tables / "sentences_extra.tsv").write_text("Hello there.\n", encoding="utf-8")
    assert run(lambda: compose(1, 100, tables), "compose") == 2
    assert run(lambda: main(["--guide", str(tmp_path / "no/dir.md")]), "compose") == 2
    assert run(tmp_path.read_bytes, "compose") == 2
    broken, nowhere, folder = capsys.readouterr().err.splitlines()
    assert "sentences_extra.tsv:1: 1 columns; write English" in broken
    assert nowhere.endswith(f"there is no folder {tmp_path}/no; make it first")
    assert folder == f"compose: {tmp_path}: Is a directory"


def test_a_reader_that_has_enough_ends_the_command() -> None:
    line = [sys.executable, "-m", "data.starter.compose", "--sample", "300"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(line, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


def test_bytes_that_are_not_utf8_are_refused(tables: Path) -> None:
    path = tables / "nouns.tsv"
    path.write_bytes(b"# \xff\n" + path.read_bytes())
    with pytest.raises(ValueError, match=r"nouns\.tsv, line 1, byte \d+: not UTF-8"):
        read_table(path)


def test_a_sentence_with_two_translations_is_refused(tables: Path) -> None:
    text = "Good grief!\tやれやれ 。\nGood grief.\tまさか 。\n"
    (tables / "sentences_extra.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="two translations"):
        compose(1, 100, tables)


def test_alignments_are_optional(tmp_path: Path) -> None:
    path = tmp_path / "sentences_x.tsv"
    path.write_text("I run.\t私は 走り ます 。\t0-0 1-1 2?3\nYes.\tはい 。\n", "utf-8")
    first, second = read_sentences(path)
    assert not second.sure and not second.possible
    assert first.sure == {(0, 0), (1, 1)} and first.possible == {(2, 3)}


def plain(english: str) -> str:
    """Undo everything that vary may do, the long way round."""
    text = english.lower().replace("’", "'").rstrip(".!?")
    for short, full in (
        ("can't", "cannot"),
        ("won't", "will not"),
        ("n't", " not"),
        ("i'm", "i am"),
        ("'re", " are"),
        ("'ll", " will"),
        ("'ve", " have"),
    ):
        text = text.replace(short, full)
    return re.sub(r"\b(he|she|it)'s\b", r"\1 is", text)


def test_vary_keeps_the_sentence(corpus: StarterCorpus) -> None:
    rng = random.Random(5)
    sentences = [pair.source for pair in all_pairs(corpus)][::7]
    varied = [vary(sentence, rng) for sentence in sentences]
    for before, after in zip(sentences, varied, strict=True):
        assert plain(after) == plain(before), (before, after)
    changed = sum(a != b for a, b in zip(sentences, varied, strict=True))
    assert 0.5 < changed / len(sentences) < 0.95


def test_vary_types_in_every_way() -> None:
    rng = random.Random(0)
    seen = {vary("I don't love it.", rng) for _ in range(400)}
    for typed in (
        "I don't love it.",
        "I don't love it",
        "i don't love it",
        "I don’t love it.",
        "I do not love it.",
        "i do not love it",
    ):
        assert typed in seen
    seen = {vary("I am sure that he will come.", rng) for _ in range(400)}
    assert {"I'm sure that he will come.", "I am sure that he'll come."} <= seen


@pytest.mark.parametrize(
    ("sentence", "never"),
    [
        ("Don't you like music?", "not you"),
        ("I know what it is.", "it's"),
        ("He is taller than I am.", "I'm"),
        ("It's been a long day.", "It is"),
        ("Emma's book is new.", "Emma is"),
        ("You like it?", "it."),
    ],
)
def test_vary_leaves_what_it_would_break(sentence: str, never: str) -> None:
    rng = random.Random(3)
    for _ in range(300):
        assert never.lower() not in vary(sentence, rng).lower().replace("’", "'")


def test_the_guide_is_up_to_date(corpus: StarterCorpus) -> None:
    written = (ROOT / "docs" / "starter.md").read_bytes().decode()
    assert written == make_guide(corpus), (
        "run python -m data.starter.compose --guide docs/starter.md"
    )
    lines = [line for path in HERE.glob("sentences_*.tsv")
             for line in path.read_text("utf-8").split("\n")]  # fmt: skip
    by_hand = sum(bool(line) and not line.startswith("#") for line in lines)
    assert f" {by_hand:,} hand-written sentences" in written
