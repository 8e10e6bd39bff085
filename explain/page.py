"""The explorer: traces as one HTML file that works offline, on its own.

Style, script and data are all inside. The page's own Content-Security-Policy allows
just that one script and that one style, by their hashes, and no request at all; the
data is JSON that no browser takes for anything else.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from data.tokenizer import Tokenizer
from explain.glossary import Glossary
from explain.kinds import KINDS
from explain.page_data import GoldAlignment, PageEntry, pack
from explain.probes import candidates, layer_lens, what_if
from explain.trace import AttentionTrace
from model.transformer import Transformer

__all__ = ["GoldAlignment", "Page", "PageEntry", "candidates", "layer_lens",
           "make_entry", "render", "what_if"]  # fmt: skip

_FOLDER = Path(__file__).with_name("page")
_SCRIPTS = (
    "numbers.js",
    "state.js",
    "matrix.js",
    "worked.js",
    "sections.js",
    "maps.js",
    "words.js",
    "answers.js",
    "page.js",
)
BUDGET = 1_500_000
"""Bytes of a page of one sentence, unless its maps alone take more."""
_MORE = 400_000
"""Bytes that each further sentence may add."""


def render(entries: Sequence[PageEntry]) -> str:
    """Return the page of some sentences, the first of them open.

    What would make the page larger than its budget is left out, and the page names it.
    Raises `ValueError` where there is no sentence.
    """
    if not entries:
        raise ValueError("a page of no sentence: give one trace or more")
    for kind in KINDS:
        if not all(entry.trace.layers(kind) for entry in entries):
            raise ValueError(f"a page shows all kinds of map: this trace has no {kind}")
    style = (_FOLDER / "page.css").read_text("utf-8")
    script = "\n".join((_FOLDER / name).read_text("utf-8") for name in _SCRIPTS)
    labels = json.loads((_FOLDER / "labels.json").read_text("utf-8"))
    fixed = {
        "style": style,
        "script": script,
        "labels": _data(labels),
        "policy": _policy(script, style),
        "title": html.escape(" · ".join(e.trace.source.text for e in entries)[:120]),
    }
    size = sum(len(part.encode()) for part in fixed.values()) + 8_000
    room = BUDGET + (len(entries) - 1) * _MORE - size
    return _fill({**fixed, "data": _data(pack(entries, room))})


def make_entry(
    model: Transformer,
    trace: AttentionTrace,
    tokenizer: Tokenizer,
    glossary: Glossary | None = None,
    gold: GoldAlignment | None = None,
    heads_off: bool = True,
    languages: tuple[str, str] = ("en", "ja"),
) -> PageEntry:
    """Return a sentence of a page, all its questions put to the model.

    tokenizer is the target's. `heads_off` asks what each head changes, which takes most
    of the time.
    """
    return PageEntry(
        trace=trace,
        glossary=glossary or {},
        gold=gold,
        what_if=what_if(model, trace, tokenizer) if heads_off else None,
        candidates=candidates(trace, tokenizer),
        lens=layer_lens(model, trace, tokenizer),
        languages=languages,
    )


@dataclass(frozen=True)
class Page:
    """A page that shows itself in a notebook."""

    entries: Sequence[PageEntry]
    height: int = 900
    """Of the frame in a notebook, in pixels."""

    @cached_property
    def html(self) -> str:
        return render(self.entries)

    def _repr_html_(self) -> str:
        """Return the page in a frame that may run its script and do nothing else."""
        return (
            f'<iframe sandbox="allow-scripts" title="Attention" width="100%" '
            f'height="{self.height}" style="border:0" '
            f'srcdoc="{html.escape(self.html)}"></iframe>'
        )


def _data(data: Any) -> str:
    r"""Return JSON that means nothing to an HTML parser: < is written \u003c."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _policy(script: str, style: str) -> str:
    def source(text: str) -> str:
        digest = hashlib.sha256(text.encode()).digest()
        return f"'sha256-{base64.b64encode(digest).decode()}'"

    return (
        f"default-src 'none'; script-src {source(script)}; style-src {source(style)}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )


def _fill(parts: Mapping[str, str]) -> str:
    """Return the template with each {{name}} replaced, once and for all."""
    template = (_FOLDER / "page.html").read_text("utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda name: parts[name[1]], template)
