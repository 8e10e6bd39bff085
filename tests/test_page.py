"""The explorer page, in a real browser; cases 22 to 25 of the public bug reports."""

import base64
import copy
import html
import json
import math
import re
import shutil
import string
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from data.tokenizer import Tokenizer, train_tokenizer
from explain.alignment import Heads, cross_weights, parse_links, word_matrix
from explain.files import read, to_json
from explain.glossary import Entry
from explain.page import (
    BUDGET,
    GoldAlignment,
    Page,
    PageEntry,
    candidates,
    layer_lens,
    make_entry,
    render,
    what_if,
)
from explain.page_data import exact, rounded, shown
from explain.probes import WhatIf
from explain.trace import AttentionTrace, ModelNote, Source, Target, trace_attention
from explain.views import choose, default_row
from explain.words import SegmenterMissing, source_words, target_words
from model.config import ModelConfig
from model.engine import Hypothesis
from model.search import search
from model.transformer import Transformer

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is missing")

PAGE_FOLDER = Path(__file__).parents[1] / "explain" / "page"
SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
ENGLISH = ("I", "love", "machine", "learning")
WORDS = ("私は", "機械", "学習", "が", "大好き", "です", "。")
HOSTILE = (
    "<s>",
    "&",
    '"',
    "<b>x</b>",
    "<!--",
    "</script>",
    "<script>",
    "<img src=x onerror=hacked=1>",
    "{{data}}",
    "\u2028",
    "'",
    "\\u003c",
)


# ------------------------------------------------------------------ models and traces


def make_model(
    width: int = 32, heads: int = 2, layers: tuple[int, int] = (2, 2), sharp: float = 3
) -> Transformer:
    """A model with random weights, its attention sharpened so that rows differ."""
    torch.manual_seed(1)
    config = ModelConfig(260, 260, width, heads, *layers, feed_forward=2 * width)
    model = Transformer(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("w_qkv"):
                parameter[:2] *= sharp
    return model


def make_trace(
    model: Transformer, source: Sequence[str], target: Sequence[str]
) -> AttentionTrace:
    """The trace of tokens with made-up ids; the end and start marks are added."""
    source_ids = [*(10 + i for i in range(len(source))), 2]
    target_ids = [1, *(20 + i for i in range(len(target))), 2]
    tokens = ("<s>", *target, "</s>")
    return trace_attention(
        model,
        ModelNote("runs/test", "0" * 64, asdict(model.config)),
        Source(" ".join(source).replace("▁", ""), (*source, "</s>"), tuple(source_ids)),
        Target("".join(target), tokens[:-1], tokens[1:],
               tuple(target_ids[:-1]), tuple(target_ids[1:]), ()),
    )  # fmt: skip


def article(model: Transformer) -> AttentionTrace:
    return make_trace(model, [f"▁{word}" for word in ENGLISH], WORDS)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return make_model()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([list(WORDS)] * 3, 300, "target")


@pytest.fixture(scope="module")
def trace(model: Transformer) -> AttentionTrace:
    return article(model)


@pytest.fixture(scope="module")
def entry(model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer) -> PageEntry:
    glossary = {
        word: Entry(f"reading{i}", f"meaning{i}") for i, word in enumerate(WORDS)
    }
    gold = GoldAlignment(ENGLISH, WORDS, parse_links("0-0 2-1 3-2 1-4 1?3 1?5"))
    return make_entry(model, trace, tokenizer, glossary, gold)


# ---------------------------------------------------------------------------- browser


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    names = ("chromium", "chromium-browser", "google-chrome")
    path = next(filter(None, map(shutil.which, names)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is in the PATH")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield started
        started.close()


class Opened:
    """Pages in a browser; any console message, error or request makes a test fail."""

    def __init__(self, browser: "sync_api.Browser", folder: Path) -> None:
        self.browser, self.folder = browser, folder
        self.complaints: list[str] = []
        self.pages: list[sync_api.Page] = []

    def __call__(
        self, text: str, address: str = "", width: int = 1280, **options: str
    ) -> "sync_api.Page":
        path = self.folder / "page.html"
        path.write_text(text, "utf-8")
        viewport = {"width": width, "height": 900}
        page = self.browser.new_page(viewport=viewport, locale="en-US", **options)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._request)
        self.pages.append(page)
        page.goto(path.as_uri() + address)
        return page

    def _request(self, request: "sync_api.Request") -> None:
        if not request.url.startswith((self.folder / "page.html").as_uri()):
            self.complaints.append(f"requested {request.url}")


@pytest.fixture
def open_page(browser: "sync_api.Browser", tmp_path: Path) -> Iterator[Opened]:
    opened = Opened(browser, tmp_path)
    yield opened
    for page in opened.pages:
        page.close()
    assert opened.complaints == []


def chosen(page: "sync_api.Page", kind: str, what: str) -> list[str]:
    """The tokens that a panel marks as its chosen row or column."""
    selector = {"row": "tr.chosen th", "column": "th.chosen-column"}[what]
    found = page.locator(f"#panel-{kind} {selector} .token")
    return [text.strip() for text in found.all_text_contents()]


def cell(page: "sync_api.Page", kind: str, row: int, column: int) -> "sync_api.Locator":
    rows = page.locator(f"#panel-{kind} .matrix tbody tr")
    return rows.nth(row).locator("td").nth(column)


# ------------------------------------------------------------------------- it opens


def test_opens_on_the_row_that_reads_watashi_wa(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]))
    assert chosen(page, "cross", "row") == ["私は", "機械"]
    bars = page.locator("#row .weight-bar")
    assert [t.strip() for t in bars.locator(".token").all_text_contents()] == [
        *ENGLISH, "</s>"]  # fmt: skip
    heads = trace.map("cross", 1).weights[:, 1, :]
    sharpest = heads[heads[:, :-1].max(axis=1).argmax()]
    assert bars.locator(".number").all_text_contents() == [f"{w:.2f}" for w in sharpest]
    assert "step=2" in page.url or page.evaluate("location.hash").startswith("#step=2")


def test_opens_on_the_same_row_as_the_other_views(model: Transformer) -> None:
    spelled = [f"<0x{byte:02X}>" for byte in "私".encode()]
    for tokens, row in (
        (["今日", "私は", "行く"], 2),
        (["今日", *spelled, "は", "行く"], 5),
        (["私", "はい"], 2),
        (["ありがとう"], 1),
    ):
        trace = make_trace(model, ["▁today"], tokens)
        entry = PageEntry(trace, dict.fromkeys(tokens, Entry("", "")))
        [written] = page_data(render([entry]))["entries"]
        assert written["opens"]["step"] == default_row(trace) == row


def test_a_screenshot_is_not_blank(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    assert "私" in page.inner_text("body")
    assert len(set(page.screenshot())) > 200
    pixels = page.evaluate(
        """() => [...document.querySelectorAll(".thumb canvas")].map((canvas) =>
        new Set(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
        .data).size)"""
    )
    assert len(pixels) == 6 * 3 and min(pixels) > 4


@pytest.mark.parametrize("width", [360, 900, 1600])
@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_fits_the_width(
    open_page: Opened, entry: PageEntry, width: int, color_scheme: str
) -> None:
    page = open_page(render([entry]), width=width, color_scheme=color_scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_cells_settle_on_one_size(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    frames = """async () => {
        const seen = new Set();
        for (let i = 0; i < 20; i++) {
            await new Promise(requestAnimationFrame);
            const sizes = [...document.querySelectorAll(".matrix")].map(
                (table) => table.style.getPropertyValue("--cell"));
            if (i > 9) seen.add([document.body.scrollHeight, ...sizes].join(" "));
        }
        return [...seen];
    }"""
    for width in range(320, 520, 20):
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(frames)
        assert len(found) == 1, (width, found)


@pytest.mark.parametrize("color_scheme", ["light", "dark"])
def test_a_number_on_any_blue_can_be_read(
    open_page: Opened, entry: PageEntry, color_scheme: str
) -> None:
    """WCAG's contrast of 4.5 for text, at every weight from 0 to 1 in thousandths."""
    page = open_page(render([entry]), color_scheme=color_scheme)
    colours = page.evaluate("""() => {
        const name = { element: [], spoken: "" };
        const map = { rows: [name], columns: Array(1001).fill(name),
            masked: () => false, weight: (r, c) => c / 1000, describe: () => "" };
        document.querySelector("#maps").append(tableMatrix(map).element);
        const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
        const cells = document.querySelectorAll("#maps > table tbody td");
        return [...cells].map((cell) => {
            const [own, over] = [getComputedStyle(cell),
                                 getComputedStyle(cell, "::before")];
            return [own.color, own.backgroundColor, over.backgroundColor,
                    over.opacity].map(numbers);
        });
    }""")
    assert len(colours) == 1001
    for text, below, above, [opacity] in colours:
        mixed = [b + (a - b) * opacity for b, a in zip(below, above, strict=True)]
        light, dark = sorted((luminance(text), luminance(mixed)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, opacity


def luminance(colour: Sequence[float]) -> float:
    """The relative luminance of an sRGB colour, as WCAG 2.2 defines it."""
    shares = [channel / 255 for channel in colour]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4
              for s in shares]  # fmt: skip
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_prints(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]), color_scheme="dark")
    assert page.pdf(format="A4").startswith(b"%PDF")


# ------------------------------------------------------------------ steps and tokens


def test_arrow_keys_move_the_step(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    page.keyboard.press("ArrowRight")
    assert chosen(page, "cross", "row") == ["機械", "学習"]
    spoken = (
        r"reading 機械, predicting 学習: attends to \S+ [01]\.\d\d, layer 2 head \d"
    )
    assert re.fullmatch(spoken, page.inner_text("#live"))
    for _ in range(4):
        page.keyboard.press("ArrowLeft")
    assert chosen(page, "cross", "row") == ["<s>", "私は"]
    page.locator(".strip button").first.focus()
    page.keyboard.press("End")
    assert chosen(page, "cross", "row") == ["。", "</s>"]


def test_steps_carry_both_labels_readings_and_candidates(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]))
    steps = page.locator(".strip button")
    assert steps.count() == 8
    assert steps.nth(1).get_attribute("aria-label") == "2: reads 私は, predicts 機械"
    assert steps.nth(1).locator(".gloss").inner_text().split() == [
        "reading1", "meaning1"]  # fmt: skip
    shown_now = page.locator("#next .candidates .token").all_text_contents()
    assert len(shown_now) == 5
    first = entry.candidates[1][0]
    assert f"{first.probability:.3f}" in page.inner_text("#next")


def test_a_reading_that_is_the_word_itself_is_left_out(open_page: Opened) -> None:
    trace = make_trace(make_model(), ["▁machine"], ["機械", "です"])
    known = {"機械": Entry("きかい", "machine"), "です": Entry("です", "is")}
    gold = GoldAlignment(["machine"], ["機械", "です"], parse_links("0-0"))
    page = open_page(render([PageEntry(trace, known, gold)]))
    assert page.locator(".strip .gloss").all_text_contents() == ["きかいmachine", "is"]


def test_a_token_of_two_words_has_the_gloss_of_the_first(model: Transformer) -> None:
    trace = make_trace(model, ["▁machine"], ["機械学習", "です"])
    gold = GoldAlignment(["machine"], ["機械", "学習", "です"], parse_links("0-0"))
    known = {"機械": Entry("きかい", "machine"), "学習": Entry("がくしゅう", "")}
    second_alone = {"学習": known["学習"]}
    for glossary, word in ((known, "機械"), (second_alone, None)):
        [entry] = page_data(render([PageEntry(trace, glossary, gold)]))["entries"]
        assert [gloss and gloss["word"] for gloss in entry["glosses"]] == [
            word, None, None]  # fmt: skip


def test_choosing_a_token_marks_it_in_every_panel(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]))
    page.locator("#panel-cross thead th").nth(1).click()  # love
    page.locator("#panel-decoder_self thead th").nth(3).click()  # 学習
    assert chosen(page, "encoder_self", "row") == ["love"]
    assert chosen(page, "encoder_self", "column") == ["love"]
    assert chosen(page, "cross", "column") == ["love"]
    assert chosen(page, "cross", "row") == ["学習", "が"]
    assert chosen(page, "decoder_self", "row") == ["学習", "が"]
    assert chosen(page, "decoder_self", "column") == ["学習"]


def test_a_matrix_is_walked_by_keyboard_and_prints_the_weight(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]))
    page.select_option("#panel-decoder_self [aria-label=Head]", "0")
    cell(page, "decoder_self", 3, 1).click()
    page.keyboard.press("ArrowRight")
    weight = trace.map("decoder_self", 1).weights[0, 3, 2]
    readout = page.locator("#panel-decoder_self .readout")
    assert readout.inner_text() == f"reads 学習, predicts が: {weight:.3f} on 機械"
    page.keyboard.press("Enter")
    assert "cell=decoder.4.3" in page.evaluate("location.hash")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert "not yet written" in readout.inner_text()
    assert cell(page, "decoder_self", 3, 4).get_attribute("aria-label") == "masked"


def test_cells_have_names_where_their_numbers_are_hidden(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]), "#decoder=2.1&cross=2.1", width=360)
    assert page.locator("#panel-decoder_self .matrix.numbers").count() == 0
    weights = trace.map("decoder_self", 1).weights[0]
    places = [(r, c) for r in range(8) for c in range(8)]
    names = ["masked" if c > r else f"{weights[r, c]:.3f}" for r, c in places]
    grid = "#panel-decoder_self .matrix"
    assert heard(page, grid, "gridcell") == ["", *names]
    assert heard(page, grid, "columnheader") == ["<s>", *WORDS]
    assert heard(page, grid, "rowheader")[:2] == [
        "reads <s>, predicts 私は", "reads 私は, predicts 機械"]  # fmt: skip
    words = heard(page, "#words .matrix", "gridcell")
    assert sum("true alignment" in name for name in words) == 4
    assert sum("largest weight" in name for name in words) == len(WORDS)


def heard(page: "sync_api.Page", selector: str, role: str) -> list[str]:
    """The names that Chromium tells a screen reader, of what has a role inside."""
    session = page.context.new_cdp_session(page)
    root = session.send("DOM.getDocument")["root"]["nodeId"]
    inside = {"nodeId": root, "selector": selector}
    found = session.send("DOM.querySelector", inside)
    asked = {"nodeId": found["nodeId"], "role": role}
    nodes = session.send("Accessibility.queryAXTree", asked)["nodes"]
    return [node.get("name", {}).get("value", "") for node in nodes]


def test_lines_and_thumbnails(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    page.get_by_role("button", name="Lines").click()
    tokens = page.locator("#panel-cross .line-token")
    assert tokens.count() == 8 + 5
    tokens.nth(8 + 2).press("Enter")
    assert chosen_line(page, "encoder_self") == "machine"
    page.get_by_role("button", name="Matrix").click()
    page.get_by_role("button", name="Encoder self-attention, layer 1 head 2").click()
    assert "encoder=1.2" in page.evaluate("location.hash")
    view = page.locator("#panel-encoder_self .matrix").get_attribute("aria-label")
    assert view == "Encoder self-attention, layer 1 head 2"
    said = page.inner_text("#live")
    assert re.fullmatch(view + r": machine: 0\.\d{3} on \S+", said)
    page.get_by_role("button", name="Lines").click()
    assert page.inner_text("#live") == ""  # the button says it itself


def test_a_long_token_is_not_cut_off(open_page: Opened) -> None:
    trace = make_trace(
        make_model(), ["▁basketball", "▁it"], ["バスケットボールの試合", "だ"]
    )
    page = open_page(render([PageEntry(trace)]))
    page.get_by_role("button", name="Lines").click()
    boxes = """all => all.map((text) => {
        const own = text.getBoundingClientRect();
        const svg = text.closest("svg").getBoundingClientRect();
        return [own.left - svg.left, svg.right - own.right];
    })"""
    found = page.locator(".lines .line-token").evaluate_all(boxes)
    assert len(found) == 2 * (3 + 3 + 3) and min(map(min, found)) >= -1


def test_the_ends_of_the_steps_keep_the_focus(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]))
    back = page.locator("#bar button").first
    for _ in range(3):
        back.press("Enter")
    assert "1/8" in page.inner_text("#bar")
    assert back.get_attribute("aria-disabled") == "true"
    assert back.evaluate("(button) => button === document.activeElement")


def chosen_line(page: "sync_api.Page", kind: str) -> str:
    found = page.locator(f"#panel-{kind} .line-token.chosen")
    return found.get_attribute("aria-label") or ""


def test_a_link_leads_back_to_the_same_place(
    open_page: Opened, entry: PageEntry
) -> None:
    text = render([entry, replace(entry, gold=None)])
    address = "#sentence=2&step=4&encoder=1.2&decoder=2.mean&cross=1.1&cell=cross.4.2"
    page = open_page(text, address)
    assert page.evaluate("location.hash") == address
    assert chosen(page, "cross", "row") == ["学習", "が"]
    assert chosen(page, "cross", "column") == ["love"]
    page = open_page(text, "#step=999&cross=9.9&cell=cross.-4.x&language=xx&figure=<b>")
    assert chosen(page, "cross", "row") == ["<s>", "私は"]


def test_a_link_keeps_a_source_token_beside_a_cell_of_the_decoder(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]), "#step=4&cell=cross.4.1")
    other = chosen(page, "cross", "column")
    cell(page, "decoder_self", 3, 1).click()
    assert chosen(page, "cross", "column") == other == ["I"]
    again = open_page(render([entry]), page.evaluate("location.hash"))
    assert chosen(again, "cross", "column") == ["I"]
    assert chosen(again, "decoder_self", "column") == chosen(
        page, "decoder_self", "column"
    )


def test_languages(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    labels = json.loads((PAGE_FOLDER / "labels.json").read_text("utf-8"))
    for name, code, word in (("日本語", "ja", "ヘッド"), ("한국어", "ko", "헤드")):
        page.get_by_role("button", name=name).click()
        assert page.get_attribute("html", "lang") == code
        assert word in page.inner_text("#maps")
        assert f"language={code}" in page.evaluate("location.hash")
        assert page.inner_text("#skip") == labels[code]["skip"]
    tokens = page.locator("#panel-cross tbody tr").nth(1).locator("th .token")
    assert tokens.first.get_attribute("lang") == "ja"
    assert page.locator("#panel-cross thead .token").first.get_attribute("lang") == "en"


def test_a_page_of_the_other_direction_says_so(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([replace(entry, languages=("ja", "en"))]))
    tokens = page.locator("#panel-cross tbody tr").nth(1).locator("th .token")
    assert tokens.first.get_attribute("lang") == "en"
    assert page.locator("#panel-cross thead .token").first.get_attribute("lang") == "ja"
    assert page.locator("h1 bdi").first.get_attribute("lang") == "ja"
    assert page.inner_text("#panel-cross p") == "Each step looks at the Japanese."


def test_an_unknown_language_in_the_address_is_not_taken(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]), "#language=constructor")
    assert page.get_attribute("html", "lang") == "en"


def test_labels_are_complete() -> None:
    labels = json.loads((PAGE_FOLDER / "labels.json").read_text("utf-8"))
    scripts = "".join(p.read_text("utf-8") for p in PAGE_FOLDER.glob("*.js"))
    holes = {
        language: {name: sorted(re.findall(r"\{\w+\}", t)) for name, t in texts.items()}
        for language, texts in labels.items()
    }
    assert holes["en"] == holes["ja"] == holes["ko"]
    assert set(re.findall(r'label\("(\w+)"', scripts)) <= set(labels["en"])


# ------------------------------------------------------------------------ arithmetic


def test_a_worked_cell_is_the_traces_arithmetic(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]), "#cross=2.1&cell=cross.3.2")
    computed = page.evaluate(
        """() => { const cell = computeCell("cross", 1, 0, 2, 1);
        return Object.fromEntries(Object.entries(cell).filter(([, v]) =>
        ArrayBuffer.isView(v) || Array.isArray(v)).map(([n, v]) => [n, Array.from(v)]))
        }"""
    )
    written = json.loads(json.dumps(to_json(trace, values=True)))
    at = next(m for m in written["maps"] if m["kind"] == "cross" and m["layer"] == 1)
    matrices = next(
        m for m in written["projections"] if m["kind"] == "cross" and m["layer"] == 1
    )
    values = at["values"]
    x, memory = np.array(values["normalised"][2]), np.array(values["memory"])
    K = len(values["q"][0][0])
    expected = {
        "q": values["q"][0][2],
        "freshQ": x @ np.array(matrices["W_Q"])[:, :K],
        "freshK": memory[1] @ np.array(matrices["W_K"])[:, :K],
        "freshV": memory[1] @ np.array(matrices["W_V"])[:, :K],
        "scores": values["scores"][0][2],
        "scaled": values["scaled"][0][2],
        "fresh": at["weights"][0][2],
        "context": values["context"][0][2],
        "output": values["output"][2],
    }
    for name, value in expected.items():
        assert np.allclose(computed[name], value, atol=2e-5), name
    weight = at["weights"][0][2][1]
    assert page.inner_text("#worked .lead .number") == f"{weight:.4f}"
    softmax = page.inner_text("[data-step=weight] tr.chosen").split()
    assert softmax[-1] == f"{weight:.4f}"
    assert page.locator("#worked .badge.bad").count() == 0
    assert page.locator("#worked [data-step]").count() == 8


@pytest.mark.parametrize("by", [-2000, -40, -11, 0, 11, 40, 2000])
def test_the_softmax_that_is_printed_works_out_for_any_scores(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace, by: float
) -> None:
    """One vector added to every key adds one number to a row's scores, to no weight."""
    at = trace.map("cross", 1)
    query, K = at.values["q"][0, 2], at.values["q"].shape[2]
    shift = query * by * K**0.5 / (query @ query)
    moved = replace(at, values={**at.values, "k": at.values["k"] + shift})
    maps = tuple(moved if m is at else m for m in trace.maps)
    changed = replace(entry, trace=replace(trace, maps=maps))
    page = open_page(render([changed]), "#cross=2.1&cell=cross.3.2")
    formula = page.inner_text("[data-step=weight] .formula").replace("−", "-")
    number = r"(-?\d+\.\d+)"
    pattern = rf"exp\({number}( [-+] \d+\.\d+)?\) ÷ {number} = {number} ÷ \3 = {number}"
    found = re.fullmatch(pattern, formula)
    assert found is not None, formula
    score, total, raised, weight = (float(found[i]) for i in (1, 3, 4, 5))
    largest = float((at.values["scaled"][0, 2] + by).max())
    assert score == pytest.approx(at.values["scaled"][0, 2, 1] + by, abs=2e-3)
    power = math.exp(score + float((found[2] or "0").replace(" ", "")))
    assert raised == pytest.approx(power, rel=2e-3, abs=1e-4)
    assert raised / total == pytest.approx(weight, abs=2e-4)
    assert weight == pytest.approx(at.weights[0, 2, 1], abs=1e-3)
    cells = page.locator("[data-step=weight] tbody td:nth-child(5)").all_text_contents()
    assert sum(map(float, cells)) == pytest.approx(total, rel=1e-3)
    told = page.locator("[data-step=weight] .shifted").count()
    assert (told == 1) == (found[2] is not None) == (abs(largest) > 12)


@pytest.mark.parametrize("kind", ["encoder_self", "decoder_self", "cross"])
def test_a_corrupted_weight_shows(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace, kind: str
) -> None:
    assert open_page(render([entry])).locator("#badge.good").count() == 1

    def damage(weights: np.ndarray) -> np.ndarray:
        damaged = weights.copy()
        damaged[1, 2, 0] += 1e-4
        return damaged

    maps = tuple(
        replace(m, weights=damage(m.weights)) if (m.kind, m.layer) == (kind, 1) else m
        for m in trace.maps
    )
    page = open_page(render([replace(entry, trace=replace(trace, maps=maps))]))
    badge = page.locator("#badge.bad")
    assert f"1 of {sum(m.weights.size for m in maps)} weights" in badge.inner_text()
    badge.locator("button").click()
    assert page.locator("#cell-badge.bad").count() == 1
    assert page.locator("[data-step=weight] .badge.bad").count() == 1
    assert page.locator("[data-step=score] .badge.good").count() == 1


def test_a_corrupted_matrix_shows(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    damaged = trace.projections[-1].w_v.copy()
    damaged[:, 0] *= -1
    projections = (*trace.projections[:-1], replace(trace.projections[-1], w_v=damaged))
    changed = replace(entry, trace=replace(trace, projections=projections))
    page = open_page(render([changed]), "#cross=2.1&cell=cross.3.2")
    bad = page.locator("[data-step]:has(.badge.bad)")
    assert bad.count() == 1 and bad.get_attribute("data-step") == "value"


def test_what_was_left_out_of_a_worked_cell_is_named(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    bare = replace(trace, maps=tuple(
        replace(m, values={name: m.values[name] for name in NEEDED}) for m in trace.maps
    ))  # fmt: skip
    notice = "#worked .notice"
    page = open_page(render([entry, replace(entry, trace=bare)]), "#sentence=1")
    assert page.locator(notice).count() == 0
    page.select_option(".chooser select", "1")
    assert "Some of this sentence’s numbers were left out" in page.inner_text(notice)
    without = replace(entry, trace=replace(trace, projections=()))
    page = open_page(render([without]))
    assert "The matrices of this layer were left out" in page.inner_text(notice)


NEEDED = ("q", "k", "v", "scores", "scaled", "context")


def test_a_mean_is_the_mean(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]), "#cross=1.mean&cell=cross.4.3")
    weights = trace.map("cross", 0).weights[:, 3, 2]
    assert page.inner_text("#worked .formula") == (
        f"({weights[0]:.4f} + {weights[1]:.4f}) ÷ 2 = {weights.mean():.4f}"
    )
    page.locator("#worked .choices button").nth(1).click()
    assert "cross=1.2" in page.evaluate("location.hash")


def test_packed_numbers_keep_their_values() -> None:
    alphabet = f"{string.ascii_uppercase}{string.ascii_lowercase}{string.digits}+/"
    numbers = np.random.default_rng(0).normal(size=(3, 50)).astype(np.float32)
    largest = float(np.abs(numbers).max())
    assert exact(numbers)["shape"] == [3, 50]
    f4 = np.frombuffer(base64.b64decode(exact(numbers)["f4"]), "<f4")
    assert (f4 == numbers.ravel()).all()
    for digits, bits in ((2, 12), (3, 18), (4, 24)):
        packed = rounded(numbers, -largest, largest, digits)
        assert len(packed["codes"]) == digits * numbers.size
        assert packed["step"] == pytest.approx(2 * largest / (2**bits - 1))
        places = [alphabet.index(character) for character in packed["codes"]]
        codes = np.array(places).reshape(-1, digits) @ 64 ** np.arange(digits)[::-1]
        back = packed["low"] + codes * packed["step"]
        assert np.abs(back - numbers.ravel()).max() <= packed["step"] / 2 + 1e-7


# ---------------------------------------------------------------------------- words


def test_the_word_view_is_explain_alignments(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]), "#cross=1.1")
    source = source_words(trace.source.tokens)
    target = target_words(trace.target.tokens_out, entry.glossary)
    weights = trace.map("cross", 0).weights[0]
    expected = {
        "hidden": word_matrix(weights, target, source),
        "renormalised": word_matrix(weights, target, source, renormalise=True),
    }
    for marks, matrix in expected.items():
        page.locator("#words").get_by_role("button", name=marks).click()
        rows = page.locator("#words .matrix tbody tr").all()
        found = [row.locator("td:not(.note)").all_text_contents() for row in rows]
        assert found == [[f"{weight:.2f}" for weight in row] for row in matrix]
    mass = 1 - expected["hidden"].sum(axis=1)
    assert f"{mass.mean():.2f} of each row" in page.inner_text("#hidden-mass")
    notes = page.locator("#words .note").all_text_contents()
    assert notes == [f"{m:.2f}" for m in mass]


def test_the_word_view_says_which_words_are_not_yet_written(
    open_page: Opened, entry: PageEntry
) -> None:
    page = open_page(render([entry]))
    page.locator("#words").get_by_role("button", name="Decoder").click()
    row = page.locator("#words .matrix tbody tr").nth(1)
    readout = page.locator("#words .readout")
    row.locator("td").nth(3).hover()  # 機械 is predicted before 学習 is read
    assert readout.inner_text() == "機械: 学習 is not yet written (masked)"
    row.locator("td").nth(1).hover()
    assert re.fullmatch(r"機械: [01]\.\d{3} on 私は", readout.inner_text())


def test_gold_links_are_outlined_and_the_error_rate_printed(
    open_page: Opened, entry: PageEntry, trace: AttentionTrace
) -> None:
    page = open_page(render([entry]), "#cross=2.2")
    assert page.locator("#words td.gold:not(.maybe)").count() == 4
    assert page.locator("#words td.gold.maybe").count() == 2
    source = source_words(trace.source.tokens)
    target = target_words(trace.target.tokens_out, entry.glossary)
    weights = Heads(1, 1).of(cross_weights(trace))
    choice = word_matrix(weights, target, source).argmax(axis=1)
    sure = {(0, 0), (2, 1), (3, 2), (1, 4)}
    found = {(int(s), t) for t, s in enumerate(choice)} & {
        (s, t) for t in (0, 1, 2, 4) for s in range(4)
    }
    rate = 1 - 2 * len(found & sure) / (len(found) + len(sure))
    assert page.inner_text("#error-rate strong") == f"{rate:.3f}"
    page.locator("#words").get_by_role("button", name="word read").click()
    assert page.locator("#words td.gold").count() == 0


def test_what_no_step_reads_is_no_word_read(
    open_page: Opened, model: Transformer, tokenizer: Tokenizer
) -> None:
    # A translation cut off after two words: the last is predicted, and never read.
    whole = make_trace(model, ["▁cats", "▁run"], ["猫", "走る"])
    source, target = whole.source, whole.target
    cut = replace(
        target,
        tokens_in=target.tokens_in[:-1],
        tokens_out=target.tokens_out[:-1],
        ids_in=target.ids_in[:-1],
        ids_out=target.ids_out[:-1],
    )
    trace = trace_attention(model, whole.model, source, cut)
    gold = GoldAlignment(["cats", "run"], ["猫", "走る"], parse_links("0-0 1-1"))
    page = open_page(render([make_entry(model, trace, tokenizer, gold=gold)]))
    rows = page.locator("#words .matrix th[scope=row]")
    assert rows.all_text_contents() == ["猫", "走る"]
    page.locator("#words").get_by_role("button", name="word read").click()
    assert rows.all_text_contents() == ["<s>", "猫"]


def test_a_large_word_view_has_its_signs_and_notes(
    open_page: Opened, model: Transformer
) -> None:
    """Above 2,500 cells it is one drawing."""
    source, target = [f"word{i}" for i in range(55)], [f"語{i}" for i in range(55)]
    trace = make_trace(model, [f"▁{word}" for word in source], target)
    gold = GoldAlignment(source, target, parse_links("1-0 5-2 7?3"))
    page = open_page(render([PageEntry(trace, gold=gold)]), "#cross=2.1")
    signs = page.locator("#words .plate .sign")
    place = """all => all.map(({ style, className }) => [...["--r", "--c"].map(
        (name) => Number(style.getPropertyValue(name))), className])"""
    found = [tuple(sign) for sign in signs.evaluate_all(place)]
    classes = {(row, column): set(name.split()) for row, column, name in found}
    assert {p for p, names in classes.items() if "gold" in names} == {
        (0, 1), (2, 5), (3, 7)}  # fmt: skip
    assert "maybe" in classes[3, 7] and "maybe" not in classes[2, 5]
    weights = trace.map("cross", 1).weights[0]
    words = source_words(trace.source.tokens), target_words(target, target)
    matrix = word_matrix(weights, words[1], words[0])
    best = {(r, int(c)) for r, c in enumerate(matrix.argmax(axis=1))}
    assert {p for p, names in classes.items() if "linked" in names} == best
    page.locator("#words .plate").press("ArrowRight")
    said = f"語0: {weights[0, 1]:.3f} on word1, true alignment"
    assert page.inner_text("#live").startswith(said)
    page.locator("#words").get_by_role("button", name="hidden").click()
    notes = page.locator("#words .row-notes > div").all_text_contents()
    assert notes == [f"{max(0, 1 - row.sum()):.2f}" for row in matrix]
    assert len(set(notes)) > 1


# -------------------------------------------------- candidates, layers, heads switched


def test_candidates_are_the_softmax_of_the_logits(
    model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer
) -> None:
    ids = torch.tensor([trace.source.ids]), torch.tensor([trace.target.ids_in])
    probabilities = model(*ids)[0].softmax(dim=-1).detach().numpy()
    for row, found in zip(probabilities, candidates(trace, tokenizer), strict=True):
        best = np.argsort(-row)[:5]
        assert [c.probability for c in found] == pytest.approx(row[best], rel=1e-4)
        assert [c.token for c in found] == tokenizer.tokens(best.tolist())


def test_the_last_layer_of_the_lens_is_the_prediction(
    model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer
) -> None:
    layers = layer_lens(model, trace, tokenizer)
    assert len(layers) == 2
    for ours, theirs in zip(layers[-1], candidates(trace, tokenizer), strict=True):
        assert [c.token for c in ours] == [c.token for c in theirs]
    with pytest.raises(ValueError, match="no states"):
        candidates(trace.without_values(), tokenizer)


def test_a_head_off_is_a_head_with_no_values(
    model: Transformer, trace: AttentionTrace, tokenizer: Tokenizer
) -> None:
    """Zero rows of W_O say nothing; nor do values of zero, which is what we compare."""
    before = {n: p.clone() for n, p in model.named_parameters()}
    found = what_if(model, trace, tokenizer)
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())
    assert len(found.heads) == 6 * 2
    head = next(h for h in found.heads if (h.kind, h.layer, h.head) == ("cross", 1, 1))
    mute = copy.deepcopy(model)
    with torch.no_grad():
        mute.decoder[1].cross_attention.w_qkv[2, 16:] = 0
        source = torch.tensor([trace.source.ids])
        logits = mute(source, torch.tensor([trace.target.ids_in]))[0]
        log_probs = logits.log_softmax(dim=-1)[range(8), list(trace.target.ids_out)]
    change = float(log_probs.sum()) - sum(trace.target.log_probs)
    assert head.change == pytest.approx(change, abs=1e-3)
    greedy = search(model, source)[0][0]
    assert found.complete == greedy.complete
    cap = 2 * max(len(greedy.ids), len(trace.target.ids_out)) + 8
    ids = search(mute, source, max_steps=cap)[0][0].ids
    assert head.translation in (tokenizer.decode(ids), "".join(tokenizer.tokens(ids)))


def test_a_short_target_cuts_nothing_that_the_model_writes(
    open_page: Opened, model: Transformer, tokenizer: Tokenizer
) -> None:
    trace = make_trace(model, ["▁machine"], ["はい"])
    found = what_if(model, trace, tokenizer)
    greedy = search(model, torch.tensor([trace.source.ids]))[0][0]
    assert len(greedy.ids) > 2 * len(trace.target.ids_out) + 8
    assert found.complete == greedy.complete
    texts = tokenizer.decode(greedy.ids), "".join(tokenizer.tokens(greedy.ids))
    assert found.translation in texts
    shown_all = page_text(open_page, trace, replace(found, complete=True))
    shown_cut = page_text(open_page, trace, replace(found, complete=False))
    assert shown_cut == f"{shown_all} …" and "…" not in shown_all


@pytest.mark.parametrize(("traced", "cap"), [(1, 2 * 20 + 8), (30, 2 * 31 + 8)])
def test_only_what_is_written_without_a_head_is_capped(
    model: Transformer,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    traced: int,
    cap: int,
) -> None:
    """By twice the longer of the traced translation and of what the model writes."""
    caps = []

    def writes_20(*_: object, max_steps: int | None = None) -> list[list[Hypothesis]]:
        caps.append(max_steps)
        return [[Hypothesis.scored([21] * 20, -1.0, 1.0)]]

    monkeypatch.setattr("explain.probes.search", writes_20)
    trace = make_trace(model, ["▁machine"], ["はい"] * traced)
    assert what_if(model, trace, tokenizer).complete
    assert caps == [None, *[cap] * 12]


def page_text(open_page: Opened, trace: AttentionTrace, asked: WhatIf) -> str:
    """What a page says the model writes with every head."""
    page = open_page(render([PageEntry(trace, what_if=asked)]))
    return page.inner_text("#what-if p:has(.with-all)")


def test_heads_switched_off_are_listed(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]))
    rows = page.locator("#what-if tbody tr")
    assert rows.count() == 12
    page.locator("#what-if button").first.click()
    assert "encoder=1.1" in page.evaluate("location.hash")
    bare = open_page(render([replace(entry, what_if=None, candidates=(), lens=())]))
    assert "made without" in bare.inner_text("#what-if")


def test_the_lens_follows_the_step(open_page: Opened, entry: PageEntry) -> None:
    page = open_page(render([entry]), "#step=5")
    assert page.locator("#lens .lens > li").count() == 2
    first = f"{entry.lens[0][4][0].probability:.3f}"
    assert page.locator("#lens .number").first.inner_text() == first


# -------------------------------------------------------------------- public reports


def test_case_22_hostile_tokens_show_literally(
    open_page: Opened, model: Transformer
) -> None:
    trace = make_trace(model, HOSTILE, HOSTILE)
    trace = replace(trace, source=replace(trace.source, text=" ".join(HOSTILE)),
                    model=replace(trace.model, name="</title><b>x</b>"))  # fmt: skip
    glossary = {"<b>x</b>": Entry("<i>r</i>", "</script>")}
    words = [token for token in HOSTILE if token not in {"<s>", "\u2028"}]
    gold = GoldAlignment(words, words, parse_links("0-0"))
    page = open_page(render([PageEntry(trace, glossary, gold)]))
    tokens = [t for t in HOSTILE if t != "\u2028"]
    for kind in ("encoder_self", "cross"):
        heads = page.locator(f"#panel-{kind} thead .token")
        found = heads.all_text_contents()
        assert [t for t in found if t != "␣"] == [*tokens, "</s>"]
        titles = heads.evaluate_all("all => all.map((one) => one.title)")
        assert all(t in title for t, title in zip(HOSTILE, titles, strict=False))
    steps = page.locator(".strip .predicts").all_text_contents()
    assert [t for t in steps if t != "␣"] == [*tokens, "</s>"]
    for figure in ("Lines", "Matrix"):
        page.get_by_role("button", name=figure).click()
        assert "</script>" in page.inner_text("#maps")
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("script").count() == 3
    assert page.locator("b:not(.part b), i, img").count() == 0
    page.keyboard.press("ArrowRight")
    assert chosen(page, "cross", "row") == ["&", '"']


def test_the_page_of_a_strangers_trace_runs_no_script(
    open_page: Opened, model: Transformer, tmp_path: Path
) -> None:
    """A file with markup and script in every text that it holds, keys included."""
    attacks = (
        "</script><script>hacked=1</script>",
        "<img src=x onerror=hacked=1>",
        "<svg onload=hacked=1>",
        "javascript:hacked=1",
        "'\"><iframe srcdoc='<script>parent.hacked=1</script>'>",
    )
    data = json.loads(json.dumps(to_json(make_trace(model, attacks, attacks))))
    data["model"]["name"] = data["model"]["weights_sha256"] = attacks[0]
    data["model"]["config"] |= {attack: attack for attack in attacks}
    data["source"]["text"] = data["target"]["text"] = " ".join(attacks)
    path = tmp_path / "stranger.json"
    path.write_text(json.dumps(data), "utf-8")
    [trace] = read(path)
    glossary = {attack: Entry(attack, attack) for attack in attacks}
    page = open_page(render([PageEntry(trace, glossary)]))
    for figure in ("Lines", "Matrix"):
        page.get_by_role("button", name=figure).click()
    page.keyboard.press("ArrowRight")
    assert attacks[0] in page.inner_text("#maps")
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("script").count() == 3
    assert page.locator("img, iframe, svg[onload], a[href^=javascript]").count() == 0


def test_case_23_equal_tokens_stay_distinct(
    open_page: Opened, model: Transformer
) -> None:
    words = ["▁the", "▁cat", "▁saw", "▁the", "▁dog"]
    trace = make_trace(model, words, ["猫", "は", "犬", "を", "見た"])
    page = open_page(
        render([PageEntry(trace, dict.fromkeys([*"猫は犬を", "見た"], Entry("", "")))])
    )
    heads = page.locator("#panel-cross .matrix thead th")
    assert heads.all_text_contents() == ["the", "cat", "saw", "the", "dog", "</s>"]
    heads.nth(3).click()
    marked = heads.evaluate_all(
        "all => all.map((one) => one.classList.contains('chosen-column'))"
    )
    assert marked == [False, False, False, True, False, False]
    assert page.locator("#words thead .token").all_text_contents()[:4] == [
        "the", "cat", "saw", "the"]  # fmt: skip


def test_case_24_long_sentences_open(open_page: Opened) -> None:
    model = make_model(width=128, heads=4, layers=(3, 3))
    source = [f"▁word{i}" for i in range(127)]
    trace = make_trace(model, source, [f"語{i}" for i in range(127)])
    text = render([PageEntry(trace, {f"語{i}": Entry("", "") for i in range(127)})])
    began = time.perf_counter()
    page = open_page(text)
    page.wait_for_function("document.querySelector('#left-out')")
    opened = time.perf_counter() - began
    print(f"128 x 128 tokens: {len(text) / 1e6:.2f} MB, opens in {opened:.2f} s")
    left_out = page.inner_text("#left-out")
    assert "rounded to steps of 1/4095" in left_out and "queries, keys" in left_out
    assert "cannot be recomputed" in page.inner_text("#badge")
    page.keyboard.press("ArrowRight")
    assert "3/128" in page.inner_text("#bar")
    plate = page.locator("#panel-cross .plate")
    plate.press("ArrowRight")
    assert re.search(r"0\.\d{3} on word", page.inner_text("#panel-cross .readout"))
    inside = """plate => {
        const cursor = plate.querySelector(".cursor").getBoundingClientRect();
        const frame = plate.closest(".scroll").getBoundingClientRect();
        return cursor.right <= frame.right + 1 && cursor.bottom <= frame.bottom + 1;
    }"""
    for key in ("ArrowRight", "ArrowDown") * 70:
        plate.press(key)
    assert plate.evaluate(inside)
    page.get_by_role("button", name="Lines").click()
    assert "are not drawn" in page.inner_text("#panel-cross")


def test_case_25_a_character_of_bytes_shows_once(
    open_page: Opened, model: Transformer
) -> None:
    pieces = [f"<0x{byte:02X}>" for byte in "猫".encode()]
    trace = make_trace(model, ["▁cat"], [*pieces, "です"])
    trace = replace(trace, target=replace(trace.target, text="猫です"))
    page = open_page(render([PageEntry(trace, {"猫": Entry("ねこ", "cat"),
                                               "です": Entry("", "")})]))  # fmt: skip
    predicted = page.locator(".strip .predicts .token")
    assert predicted.all_text_contents() == ["猫", "2/3", "3/3", "です", "</s>"]
    assert predicted.first.get_attribute("title") == f"猫: {' '.join(pieces)}"
    assert predicted.nth(1).get_attribute("title") == f"猫 2/3: {pieces[1]}"
    page.locator(".strip button").nth(2).click()
    said = "reading 猫 2/3, predicting 猫 3/3: attends to "
    assert page.inner_text("#live").startswith(said)
    words = page.locator("#words .matrix th[scope=row]").all_text_contents()
    assert words == ["猫", "です", "</s>"]
    assert "\ufffd" not in page.content()


def test_bytes_that_make_no_character_show_as_themselves() -> None:
    tokens = ["<0xE7>", "<0x8C>", "です", "<0x0A>"]
    assert [token["text"] for token in shown(tokens)] == tokens


# --------------------------------------------------------------- size, safety, frames


@pytest.mark.parametrize("layers", [(3, 2), (3, 3)])
def test_an_ordinary_sentence_fits_its_budget(layers: tuple[int, int]) -> None:
    model = make_model(width=128, heads=4, layers=layers)
    trace = article(model)
    one = render([PageEntry(trace, dict.fromkeys(WORDS, Entry("", "")))])
    assert len(one.encode()) <= BUDGET
    data = page_data(one)
    assert data["entries"][0]["left_out"] == []
    assert len(data["models"][0]["projections"]) >= 2 * layers[1]
    entries = [PageEntry(trace, dict.fromkeys(WORDS, Entry("", "")))] * 3
    three = page_data(render(entries))
    assert len(three["models"]) == 1


def page_data(text: str) -> dict:  # type: ignore[type-arg]
    found = re.search(r'<script type="application/json" id="data">(.*)</script>', text)
    assert found is not None
    return dict(json.loads(found[1]))


def test_data_cannot_become_markup(entry: PageEntry) -> None:
    text = render([entry])
    data = re.search(r'id="data">(.*?)</script>', text, re.S)
    assert data is not None and not set(data[1]) & set("<>&\u2028\u2029")
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None and "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]


def test_without_a_segmenter_the_word_view_is_left_out(
    trace: AttentionTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise SegmenterMissing("not installed")

    monkeypatch.setattr("explain.page_data.text_words", missing)
    found = page_data(render([PageEntry(trace)]))["entries"][0]
    assert found["words"] is None and found["left_out"] == [{"what": "words"}]
    assert not any(found["glosses"])
    # What is a word by itself has its meaning all the same.
    known = {"機械": Entry("きかい", "machine")}
    found = page_data(render([PageEntry(trace, known)]))["entries"][0]
    glosses = [gloss and gloss["meaning"] for gloss in found["glosses"]]
    assert glosses == [None, "machine", *[None] * 6]


def test_the_example_is_made_of_todays_page(entry: PageEntry) -> None:
    """docs/example.html is the page of today, but for the numbers in it."""
    example = (PAGE_FOLDER.parents[1] / "docs" / "example.html").read_text("utf-8")
    data = re.compile(r'(<script[^>]* id="data"[^>]*>).*?(</script>)', re.DOTALL)
    title = re.compile("<title>.*?</title>")
    bare = [
        title.sub("", data.sub(r"\1\2", page)) for page in (example, render([entry]))
    ]
    assert bare[0] == bare[1]
    found = page_data(example)["entries"][0]["glosses"]
    assert all(gloss is None or gloss["word"] != gloss["reading"] for gloss in found)


def test_an_empty_page_is_refused() -> None:
    with pytest.raises(ValueError, match="no sentence"):
        render([])


def test_a_trace_without_a_kind_of_map_makes_no_page(entry: PageEntry) -> None:
    maps = tuple(m for m in entry.trace.maps if m.kind != "encoder_self")
    without = PageEntry(replace(entry.trace, maps=maps))
    with pytest.raises(ValueError, match="this trace has no encoder_self"):
        render([entry, without])
    with pytest.raises(ValueError, match="no maps of encoder_self"):
        choose(without.trace, ["encoder_self"])


def test_shows_itself_in_a_notebook(open_page: Opened, entry: PageEntry) -> None:
    frame = Page([entry])._repr_html_()
    page = open_page(f"<!doctype html><title>notebook</title>{frame}")
    inside = page.frame_locator("iframe")
    inside.locator("#panel-cross tr.chosen").wait_for()
    page.locator("iframe").click(position={"x": 5, "y": 5})
    page.keyboard.press("ArrowRight")
    assert "3/8" in inside.locator("#bar").inner_text()
    assert "allow-same-origin" not in frame
    assert html.unescape(re.search('srcdoc="([^"]*)"', frame)[1]) == Page([entry]).html  # type: ignore[index]


def test_several_sentences(
    open_page: Opened, model: Transformer, entry: PageEntry
) -> None:
    other = make_trace(model, ["▁thank", "▁you"], ["ありがとう"])
    page = open_page(render([entry, PageEntry(other, {"ありがとう": Entry("", "")})]))
    page.select_option(".chooser select", "1")
    assert page.inner_text("h1 bdi >> nth=1") == "ありがとう"
    assert chosen(page, "cross", "row") == ["ありがとう", "</s>"]
    assert "sentence=2" in page.evaluate("location.hash")
