"""What the explorer page is given: traces and what goes with them, as compact JSON.

Numbers travel as base64 text: fp32 exactly, or, where a page would grow too large,
rounded to steps of equal size. What does not fit is left out, and named.
"""

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from explain.alignment import Example, Gold, cross_weights, measure
from explain.glossary import Glossary
from explain.kinds import Kind
from explain.probes import Candidate, Candidates, WhatIf
from explain.trace import AttentionMap, AttentionTrace, Projections
from explain.views import default_row
from explain.words import (
    MARKS,
    SegmenterMissing,
    Word,
    character_of_bytes,
    given_words,
    text_words,
)

Json = dict[str, Any]
Array = NDArray[np.float32]


@dataclass(frozen=True)
class GoldAlignment:
    """The true word alignment of a sentence pair, and the words that it counts."""

    source: Sequence[str]
    target: Sequence[str]
    links: Gold


@dataclass(frozen=True)
class PageEntry:
    """One sentence of a page: its trace, and whatever else is known of it."""

    trace: AttentionTrace
    glossary: Glossary = field(default_factory=dict)
    gold: GoldAlignment | None = None
    what_if: WhatIf | None = None
    candidates: Sequence[Candidates] = ()
    """The likeliest tokens of each target row."""
    lens: Sequence[Sequence[Candidates]] = ()
    """The same for each decoder layer."""
    languages: tuple[str, str] = ("en", "ja")
    """Of the source and of the target, by which each falls into words."""


# --------------------------------------------------------------------------- tokens

_SPACE = "▁"


def shown(tokens: Sequence[str], marks: Collection[int] = ()) -> list[Json]:
    """Return how to show each token: its text, its raw form, and what it is.

    A character that byte fallback split is shown on the first of its pieces; the others
    say which piece they are. Bytes that make no character show as themselves. `marks`
    are the places of start and end marks.
    """
    result: list[Json] = []
    while len(result) < len(tokens):
        index = len(result)
        character, size = character_of_bytes(tokens[index : index + 4])
        if size and character.isprintable():
            pieces = " ".join(tokens[index : index + size])
            result.append({"text": character, "raw": pieces})
            result += [
                {"text": f"{n}/{size}", "raw": tokens[index + n - 1], "of": character}
                for n in range(2, size + 1)
            ]
        else:
            result.append(_piece(tokens[index], index, index in marks))
    return result


def _piece(token: str, index: int, mark: bool) -> Json:
    if mark:
        return {"text": token, "raw": token, "mark": True}
    text = token.removeprefix(_SPACE).replace(_SPACE, "␣")
    if not text.strip():
        return {"text": "␣", "raw": token}
    made: Json = {"text": text, "raw": token}
    if index and not token.startswith(_SPACE) and text[0].isalnum():
        made["joined"] = True
    return made


def readable(text: str, tokens: Iterable[Json]) -> str:
    """Return a decoded text, or what its tokens show where bytes made no character."""
    if "\ufffd" not in text:
        return text
    pieces = (t for t in tokens if "of" not in t and not t.get("mark"))
    return "".join(t["text"] for t in pieces).replace("␣", " ").strip()


# -------------------------------------------------------------------------- numbers

_ALPHABET = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8
)


def exact(array: Array) -> Json:
    """Return an array as fp32 in base64."""
    data = np.ascontiguousarray(array, dtype="<f4").tobytes()
    return {"shape": list(array.shape), "f4": base64.b64encode(data).decode()}


def rounded(array: Array, low: float, high: float, digits: int) -> Json:
    """Return an array as whole steps up from low, each of `digits` base64 digits."""
    step = (high - low) / (64**digits - 1)
    steps = np.rint((array.astype(np.float64) - low) / (step or 1)).astype(np.int64)
    places = 6 * np.arange(digits)[::-1]
    codes = _ALPHABET[(steps.reshape(-1, 1) >> places) & 63].tobytes().decode()
    made = {"shape": list(array.shape), "low": low, "step": step}
    return {**made, "digits": digits, "codes": codes}


def exact_size(arrays: Iterable[Array]) -> int:
    return sum(array.size for array in arrays) * 16 // 3


# ------------------------------------------------------------------- what fits a page

VALUE_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("scores", ("q", "k", "scores", "scaled")),
    ("context", ("v", "context")),
    ("vectors", ("normalised", "output", "memory")),
)
"""What the worked cell needs beside the weights, the most needed first."""
_PRIORITY: tuple[Kind, ...] = ("cross", "decoder_self", "encoder_self")
_MATRICES = ("w_q", "w_k", "w_v", "w_o")


@dataclass
class _Room:
    """How many characters a page may still grow by."""

    left: int

    def take(self, size: int) -> bool:
        if size > self.left:
            return False
        self.left -= size
        return True


def pack(entries: Sequence[PageEntry], room: int) -> Json:
    """Return the page's data, of about `room` characters at most.

    The maps, the tokens and the answers of `explain.probes` always go in. Then follow,
    as far as they fit, the values and the projections of the worked cell; each entry
    names what was left out.
    """
    models: list[Json] = []
    written = [_entry(entry, models) for entry in entries]
    budget = _Room(room - len(json.dumps(written, ensure_ascii=False).encode()))
    for entry, json_entry in zip(entries, written, strict=True):
        _pack_weights(entry.trace, json_entry, budget)
    for group, names in VALUE_GROUPS:
        for entry, json_entry in zip(entries, written, strict=True):
            _pack_values(entry.trace, json_entry, group, names, budget)
    first = {entry["model"]: trace.trace for entry, trace in
             reversed(list(zip(written, entries, strict=True)))}  # fmt: skip
    for index, model in enumerate(models):
        projections = first[index].projections
        # Without vectors to multiply them with, matrices are of no use.
        useful = any("memory" in e for e in written if e["model"] == index)
        _pack_projections(projections, model, budget if useful else _Room(0))
    return {"models": models, "entries": written}


def _pack_weights(trace: AttentionTrace, entry: Json, budget: _Room) -> None:
    arrays = [found.weights for found in trace.maps]
    # Half a page at most; past that, a weight is one of 4,096 steps from 0 to 1.
    exactly = exact_size(arrays) <= budget.left // 2
    for found in trace.maps:
        weights = found.weights
        packed = exact(weights) if exactly else rounded(weights, 0.0, 1.0, 2)
        entry["maps"][_name(found)] = {"weights": packed}
    budget.left -= exact_size(arrays) if exactly else 2 * sum(a.size for a in arrays)
    if not exactly:
        entry["left_out"].append({"what": "weights_rounded"})


def _pack_values(
    trace: AttentionTrace, entry: Json, group: str, names: Sequence[str], budget: _Room
) -> None:
    found = [(m, n) for m in trace.maps for n in names if n in m.values]
    memory = next((m.values["memory"] for m, n in found if n == "memory"), None)
    arrays = [m.values[n] for m, n in found if n != "memory"]
    arrays += [] if memory is None else [memory]
    if not found or not budget.take(exact_size(arrays) + 60 * len(arrays)):
        entry["left_out"].append({"what": group})
        return
    for found_map, name in found:
        if name != "memory":
            packed = exact(found_map.values[name])
            entry["maps"][_name(found_map)][name] = packed
    if memory is not None:
        entry["memory"] = exact(memory)


def _pack_projections(
    projections: Sequence[Projections], model: Json, budget: _Room
) -> None:
    """Add the matrices: in two digits a number, then in three and four as it fits."""
    ordered = sorted(projections, key=lambda p: (_PRIORITY.index(p.kind), p.layer))
    digits = dict.fromkeys(range(len(ordered)), 0)
    for most in (2, 3, 4):
        for index, found in enumerate(ordered):
            size = sum(getattr(found, name).size for name in _MATRICES)
            more = most - digits[index]
            if digits[index] in (0, most - 1) and budget.take(size * more):
                digits[index] = most
    for index, found in enumerate(ordered):
        place = f"{found.kind}.{found.layer}"
        if not digits[index]:
            model["left_out"].append(place)
            continue
        model["projections"][place] = {
            name: _rounded_evenly(getattr(found, name), digits[index])
            for name in _MATRICES
        }


def _rounded_evenly(array: Array, digits: int) -> Json:
    largest = float(np.abs(array).max())
    return rounded(array, -largest, largest, digits)


def _name(found: AttentionMap) -> str:
    return f"{found.kind}.{found.layer}"


# -------------------------------------------------------------------------- entries


def _entry(entry: PageEntry, models: list[Json]) -> Json:
    trace = entry.trace
    source, target = trace.source, trace.target
    end = len(target.tokens_out) - 1
    special = _special_ids(trace)
    outputs = shown(target.tokens_out, {end} if target.ids_out[end] in special else ())
    words, left_out = _words(entry)
    made: Json = {
        "model": _model(trace, models),
        "languages": list(entry.languages),
        "text": [source.text, readable(target.text, outputs)],
        "source": shown(source.tokens, {len(source.tokens) - 1}),
        "reads": shown(target.tokens_in, {0}),
        "predicts": outputs,
        "log_probs": list(target.log_probs),
        "opens": _opening(trace),
        "maps": {},
        "words": words,
        "glosses": _glosses(entry, words),
        "gold": _gold(entry, words),
        "candidates": [_candidates(row) for row in entry.candidates],
        "lens": [[_candidates(row) for row in layer] for layer in entry.lens],
        "left_out": left_out,
    }
    if entry.what_if is not None:
        made["what_if"] = {
            "translation": entry.what_if.translation,
            "complete": entry.what_if.complete,
            "heads": [vars(head) for head in entry.what_if.heads],
        }
    return made


def _special_ids(trace: AttentionTrace) -> set[int]:
    config = trace.model.config
    return {config.get("end_id", 2), config.get("start_id", 1)}


def _model(trace: AttentionTrace, models: list[Json]) -> int:
    """Return the index of the trace's model among models, adding it if it is new."""
    digest = hashlib.sha256()
    for found in trace.projections:
        for name in _MATRICES:
            digest.update(np.ascontiguousarray(getattr(found, name)).tobytes())
    about = {
        "name": trace.model.name,
        "sha256": trace.model.weights_sha256,
        "matrices": digest.hexdigest(),
        "config": {
            name: value
            for name, value in trace.model.config.items()
            if isinstance(value, int | float | str)
        },
    }
    for index, model in enumerate(models):
        if about.items() <= model.items():
            return index
    models.append({**about, "projections": {}, "left_out": []})
    return len(models) - 1


def _opening(trace: AttentionTrace) -> Json:
    """Return where the page opens: the row that any view opens at, in the last layer.

    Of the layer's heads it is the one with the largest weight, there, on a token that
    is text.
    """
    step = default_row(trace)
    layer = trace.layers("cross") - 1
    row = trace.map("cross", layer).weights[:, step, :]  # (H, S)
    text = row[:, :-1] if row.shape[1] > 1 else row
    return {"step": step, "layer": layer, "head": int(text.max(axis=1).argmax())}


def _words(entry: PageEntry) -> tuple[Json | None, list[Json]]:
    """Return the words of both sides with their tokens; target rows are those out."""
    source, target = entry.trace.source.tokens, entry.trace.target.tokens_out
    try:
        if entry.gold is not None:
            found = (
                given_words(source, entry.gold.source),
                given_words(target, entry.gold.target),
            )
        else:
            found = (
                text_words(source, entry.languages[0], entry.glossary),
                text_words(target, entry.languages[1], entry.glossary),
            )
    except SegmenterMissing:
        return None, [{"what": "words"}]
    return {"source": _parts(found[0]), "target": _parts(found[1])}, []


def _parts(words: Sequence[Word]) -> list[Json]:
    return [
        {"text": word.text, "parts": [list(part) for part in word.parts]}
        for word in words
    ]


def _glosses(entry: PageEntry, words: Json | None) -> list[Json | None]:
    """Return, for each of tokens_out, the glossary's entry of the word it begins.

    A reading that is the word itself is left out, and an entry with nothing else.
    """
    begun: dict[int, str] = {}
    if words is None:  # without words, what is a word by itself
        begun.update(enumerate(entry.trace.target.tokens_out))
    for word in words["target"] if words else ():
        if word["parts"]:  # of two that begin in one token, the first
            begun.setdefault(word["parts"][0][0], word["text"])
    glosses: list[Json | None] = [None] * len(entry.trace.target.tokens_out)
    for token, text in begun.items():
        known = entry.glossary.get(text)
        if known is not None:
            reading = "" if known.reading == text else known.reading
            if reading or known.meaning:
                meaning = known.meaning
                glosses[token] = {"word": text, "reading": reading, "meaning": meaning}
    return glosses


def _gold(entry: PageEntry, words: Json | None) -> Json | None:
    """Return the gold links and each head's error rate, as explain.alignment has it."""
    if entry.gold is None or words is None:
        return None
    source, target = (
        [Word(w["text"], tuple((i, s) for i, s in w["parts"])) for w in words[side]]
        for side in ("source", "target")
    )
    links = entry.gold.links
    example = Example(cross_weights(entry.trace), source, target, links)
    rates = {
        f"{heads.layer}.{'mean' if heads.head is None else heads.head}": s.error_rate
        for heads, s in measure([example]).heads.items()
        if heads.layer is not None
    }
    return {
        "sure": sorted(map(list, links.sure)),
        "possible": sorted(map(list, links.possible)),
        "error_rates": rates,
    }


def _candidates(row: Sequence[Candidate]) -> list[Any]:
    return [
        [_candidate(found.token), float(f"{found.probability:.4g}")] for found in row
    ]


def _candidate(token: str) -> Mapping[str, Any]:
    return _piece(token, 0, mark=token in MARKS)
