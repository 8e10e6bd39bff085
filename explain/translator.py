"""A trained model with its tokenizers: it translates, and shows its attention."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from data.text import read_file, words_of
from data.tokenizer import Tokenizer
from explain.glossary import Glossary, read_glossary
from model.checkpoint import RunError, load_model, read_config, sha256
from model.command import check_device
from model.consensus import expected_chrf
from model.engine import Engine, Hypothesis, Precision
from model.hub import local_folder
from model.serving import WEIGHTS, CTranslate2Engine

if TYPE_CHECKING:  # slow to import, torch above all, and not all translations need it
    from explain.trace import AttentionTrace, ModelNote
    from explain.words import Word
    from model.transformer import Transformer

EngineName = Literal["torch", "ctranslate2"]


@dataclass(frozen=True)
class Translation:
    """One translation of one sentence."""

    text: str
    hypothesis: Hypothesis
    source_tokens: int
    """Tokens of the source, its end mark included."""
    cut: bool
    """True where the source was longer than the model reads, and its end left out."""
    agreement: float | None = None
    """The chrF that the other hypotheses let expect, where it is what ranks them."""

    @property
    def score(self) -> float:
        """What translations of a sentence are ranked by."""
        return self.hypothesis.score if self.agreement is None else self.agreement


class Translator:
    """A trained model, run by an engine, with its tokenizers.

    translator = Translator.load("runs/starter")
    [[best, *others]] = translator.translate(["I love music."], beam=4)
    print(best.text, best.hypothesis.score)
    trace = translator.trace("I love music.", best.hypothesis.ids)
    print(trace.map("cross", 0).weights[0])  # head 0: target rows, source columns
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        source: Tokenizer,
        target: Tokenizer,
        weights_sha256: str = "",
        known_words: frozenset[str] = frozenset(),
        languages: tuple[str, str] = ("en", "ja"),
        glossary: Glossary | None = None,
    ) -> None:
        self.name, self.weights_sha256 = name, weights_sha256
        self.engine, self.source, self.target = engine, source, target
        self.languages = languages
        self.known_words = known_words
        self.glossary: Glossary = glossary or {}

    @classmethod
    def load(
        cls,
        name: str | Path,
        device: str = "cpu",
        engine: EngineName = "torch",
        precision: Precision = "fp32",
    ) -> "Translator":
        """Return the translator of a run directory, or with ctranslate2 of an export.

        Either may be shared: `hub:owner/name` is fetched from the Hugging Face Hub.
        Raises `model.checkpoint.RunError` where there is none or it is damaged, and
        `ValueError` where it cannot be fetched, or the engine is missing or cannot
        compute on the device.
        """
        folder = local_folder(name)
        config = read_config(folder)
        loaded = _load_engine(folder, device, engine, precision)
        shape = loaded.config
        weights, words = folder / "model.safetensors", folder / "source_words.txt"
        return cls(
            Path(name).name or folder.resolve().name,
            loaded,
            Tokenizer.load(folder / "source.spm", "source", shape.source_vocabulary),
            Tokenizer.load(folder / "target.spm", "target", shape.target_vocabulary),
            sha256(weights) if engine == "torch" else "",  # which only traces name
            frozenset(read_file(words)) if words.is_file() else frozenset(),
            tuple(config["languages"]),
            read_glossary(folder / "glossary.tsv"),
        )

    @property
    def model(self) -> "Transformer":
        """The network, whose attention can be traced.

        Raises `ValueError` where the engine is CTranslate2, which shows nothing of it.
        """
        from model.search import TorchEngine

        if not isinstance(self.engine, TorchEngine):
            raise ValueError("an exported model shows no attention: load the run")
        return self.engine.model

    @property
    def note(self) -> "ModelNote":
        """What a trace says of the model that it comes from."""
        from explain.trace import ModelNote

        config: dict[str, Any] = vars(self.engine.config)
        return ModelNote(self.name, self.weights_sha256, config)

    def translate(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
        consensus: bool = False,
    ) -> list[list[Translation]]:
        """Return the translations of each text, best first; none for a blank text.

        A text's translations do not depend on the others. Scores are those of
        `model.search`, or with consensus those of `model.consensus`.
        """
        limit = self.engine.config.max_length - 1
        encoded = [self.source.encode(text) for text in texts]
        rows = [row for row, ids in enumerate(encoded) if ids]
        sources = [[*encoded[row][:limit], self.engine.config.end_id] for row in rows]
        hypotheses = self.engine.translate(sources, beam, length_penalty, max_steps)
        found: list[list[Translation]] = [[] for _ in texts]
        for row, ranked in zip(rows, hypotheses, strict=True):
            found[row] = [
                Translation(
                    self._text(hypothesis.ids),
                    hypothesis,
                    len(encoded[row]) + 1,
                    len(encoded[row]) > limit,
                )
                for hypothesis in ranked
            ]
        return [_by_consensus(ranked) for ranked in found] if consensus else found

    def best(
        self,
        texts: Sequence[str],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
        consensus: bool = False,
    ) -> list[str]:
        """Return the best translation of each text, as `translate` ranks them.

        Of a blank text it is blank.
        """
        found = self.translate(texts, beam, length_penalty, max_steps, consensus)
        return [ranked[0].text if ranked else "" for ranked in found]

    def trace(
        self, source: str, target: str | Sequence[int], complete: bool = True
    ) -> "AttentionTrace":
        """Return all attention of one translation of one sentence, checked.

        target is a text of your own, or the ids of a translation (never its text, which
        might be tokenized another way). complete is that of the translation's
        hypothesis: where the model found no end, the trace has no end mark either. The
        source is read as far as `translate` reads it. Raises `ValueError` where a side
        is empty or the target too long.
        """
        from explain.trace import Source, Target, trace_attention

        config, limit = self.model.config, self.model.config.max_length - 1
        ids = self.target.encode(target) if isinstance(target, str) else list(target)
        text = target if isinstance(target, str) else self._text(ids)
        source_ids = self.source.encode(source)
        if not source_ids or not ids:
            raise ValueError("no attention without a word on both sides: give both")
        source_ids = [*source_ids[:limit], config.end_id]
        ids_out = [*ids, config.end_id] if complete else ids
        ids_in = [config.start_id, *ids_out[:-1]]
        if len(ids_in) > config.max_length:
            raise ValueError(
                f"a target of {len(ids)} tokens is too long to trace: the model writes "
                f"at most {limit}"
            )
        return trace_attention(
            self.model,
            self.note,
            Source(source, tuple(self.source.tokens(source_ids)), tuple(source_ids)),
            Target(
                text,
                tuple(self.target.tokens(ids_in)),
                tuple(self.target.tokens(ids_out)),
                tuple(ids_in),
                tuple(ids_out),
                (),
            ),
        )

    def words(self, trace: "AttentionTrace") -> "tuple[list[Word], list[Word]]":
        """Return the source and target words of a trace, by which it can be aligned.

        Raises `ValueError` where Japanese has to be segmented and MeCab is missing.
        """
        from explain.words import text_words

        source, target = self.languages
        return (
            text_words(trace.source.tokens, source, self.glossary),
            text_words(trace.target.tokens_out, target, self.glossary),
        )

    def page(
        self,
        traces: "Sequence[AttentionTrace]",
        gold: str | None = None,
        what_if: bool = True,
    ) -> str:
        """Return the page on which the attention of some translations can be explored.

        gold is the true word alignment of a single one, such as `0-0 1-4 2?3`. what_if
        asks what each head changes.
        """
        from explain.alignment import parse_links
        from explain.page import GoldAlignment, make_entry, render

        truth = None
        if gold is not None and len(traces) != 1:
            raise ValueError("a gold alignment belongs to one sentence")
        if gold is not None:
            source, target = (
                [word.text for word in side] for side in self.words(traces[0])
            )
            truth = GoldAlignment(source, target, parse_links(gold))
        about = (self.target, self.glossary, truth, what_if, self.languages)
        return render([make_entry(self.model, trace, *about) for trace in traces])

    def unknown_words(self, text: str) -> list[str]:
        """Return the words of text that never occurred in training, in their order."""
        if not self.known_words or self.languages[0] == "ja":  # written without spaces
            return []
        return [word for word in dict.fromkeys(words_of(text))
                if word.casefold() not in self.known_words]  # fmt: skip

    def _text(self, ids: Sequence[int]) -> str:
        """Return a translation as one line."""
        return self.target.decode(ids).replace("\n", " ").replace("\r", " ")


def _load_engine(
    folder: Path, device: str, name: EngineName, precision: Precision
) -> Engine:
    """Return what translates with the model in a folder."""
    if name == "ctranslate2":
        return CTranslate2Engine.load(folder, device)
    if (folder / WEIGHTS).is_file():
        raise RunError(f"{folder} is an export: add --engine ctranslate2")
    from model.search import TorchEngine

    check_device(device)
    return TorchEngine.of(load_model(folder, device), precision)


def _by_consensus(found: Sequence[Translation]) -> list[Translation]:
    """Return translations of one text, those first that the others are most like."""
    if not found:
        return []
    agreements = expected_chrf(
        [one.text for one in found],
        [one.hypothesis.log_probability for one in found],
    )
    agreed = [
        replace(one, agreement=agreement)
        for one, agreement in zip(found, agreements, strict=True)
    ]
    return sorted(agreed, key=lambda one: -one.score)
