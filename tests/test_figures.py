"""Figures: real glyphs without an installed font, hatched masks, equal bytes."""

import re
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_model import ARTICLE, renamed, trace

from explain import figures
from explain.figures import draw

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("matplotlib.ft2font")
SIGNATURES = {".png": b"\x89PNG\r\n", ".svg": b"<?xml"}


@pytest.fixture(autouse=True)
def missing_glyphs_are_errors() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_same_trace_gives_the_same_bytes(suffix: str, tmp_path: Path) -> None:
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    for path in (one, two):
        draw(trace(), path, ["cross"], layer=1)
    assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes().startswith(SIGNATURES[suffix])


def test_japanese_is_drawn_as_glyphs_of_the_font_that_came_by_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    # As on a machine with no font installed that matplotlib could fall back on.
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    draw(trace(), tmp_path / "maps.svg", ["cross"], layer=1, head=1)
    text = (tmp_path / "maps.svg").read_text("utf-8")
    outlines = dict(re.findall(r'<path id="([\w-]+)" d="([^"]*)"', text))
    font = FT2Font(str(figures._font()))
    for character in "私は機械学習が大好きです":
        index = font.get_char_index(ord(character))
        assert index != 0
        # Named by the glyph's number, and before matplotlib 3.11 by the character's.
        names = {f"IPAexGothic-{number:x}" for number in (index, ord(character))}
        (name,) = names & outlines.keys()
        assert outlines[name].count("\n") > 5  # an empty box has one contour of 8
    assert {name.split("-")[0] for name in outlines if "-" in name} == {"IPAexGothic"}


def test_a_character_that_the_font_lacks_is_given_by_its_number(tmp_path: Path) -> None:
    tokens = ("<s>", "😀", "$x^2$", "&", "</script>", "{}", "\\frac", "ਕ")
    draw(renamed(trace(), tokens), tmp_path / "maps.png", ["cross"], layer=1)
    picture = figures._Picture(
        renamed(trace(), tokens), figures.choose(trace(), ["cross"]), figures._font()
    )
    assert picture.rows["cross"][1] == "U+1F600 → $x^2$"
    assert picture.rows["cross"][-1] == "U+0A15 → </s>"


def drawn(**options: Any) -> Any:
    chosen = figures.choose(trace(), **options)
    return figures._Picture(trace(), chosen, figures._font()).draw()


def panels(figure: Any) -> list[Any]:
    *maps, _legend = figure.axes
    return maps


def test_all_maps_are_there_each_with_its_own_weights() -> None:
    found = trace()
    maps = panels(drawn())
    assert len(maps) == (3 + 2 + 2) * 4
    heads = [weights for one in found.maps for weights in one.weights]
    for axes, weights in zip(maps, heads, strict=True):
        (mesh,) = axes.collections
        shown = mesh.get_array()
        assert mesh.get_clim() == (0, 1)
        assert np.array_equal(shown.data.reshape(weights.shape), weights)


def test_only_the_decoders_self_attention_is_hatched_where_it_is_masked() -> None:
    for axes, kind in zip(
        panels(drawn(head=1)),
        ["encoder_self"] * 3 + ["decoder_self"] * 2 + ["cross"] * 2,
        strict=True,
    ):
        (mesh,) = axes.collections
        mask = np.ma.getmaskarray(mesh.get_array())
        causal = kind == "decoder_self"
        assert bool(axes.patch.get_hatch()) == causal
        expected = np.triu(np.full((8, 8), True), 1) if causal else np.zeros(mask.shape)
        assert np.array_equal(mask, expected)
        # A number in every cell that is not masked, and in no other.
        numbers = [t for t in axes.texts if re.fullmatch(r"\d\.\d\d", t.get_text())]
        assert len(numbers) == np.count_nonzero(~mask)


def test_rows_say_what_is_read_and_what_is_predicted() -> None:
    (axes,) = panels(drawn(kinds=["cross"], layer=2, head=3))
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels[:2] == ["<s> → 私は", "私は → 機械"]
    assert axes.get_ylim() == (8, 0)
    figure = axes.figure
    texts = [text.get_text() for text in figure.texts]
    assert f"{ARTICLE} → 私は機械学習が大好きです。" in texts
    assert "reads → predicts" in texts and "layer 2, head 3" in texts
    named = [t.get_text() for t in axes.texts]
    assert named[:5] == ["I", "love", "machine", "learning", "</s>"]


def test_everything_lies_inside_the_figure() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = drawn()
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        box = axes.get_tightbbox(renderer)
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_global_settings_stay_as_they_are(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    draw(trace(), tmp_path / "maps.png", ["encoder_self"], layer=1, head=1)
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib_fontja" not in sys.modules


def test_a_long_map_is_an_image_in_an_svg(tmp_path: Path) -> None:
    words = ("猫", "が", "犬", "を", "見た", "。") * 8
    found = trace("the cat saw the dog", words)
    draw(found, tmp_path / "maps.svg", ["decoder_self"], layer=1, head=1)
    assert (tmp_path / "maps.svg").read_text("utf-8").count("data:image/png") >= 1


def test_one_token_on_each_side(tmp_path: Path) -> None:
    draw(trace("I", ()), tmp_path / "maps.png")
    assert (tmp_path / "maps.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("maps.pdf", {}, "maps.pdf: give a figure's file that ends in .png or .svg"),
        (
            "maps.png",
            {"kinds": ["cross"], "layer": 9},
            "no layer 9: give one from 1 to 2",
        ),
        ("maps.png", {"head": 0}, "no head 0"),
        ("maps.png", {"kinds": ["x"]}, "no kind of map 'x'"),
    ],
)
def test_a_wrong_choice_is_named_and_nothing_written(
    name: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=said):
        draw(trace(), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("package", ["matplotlib", "matplotlib_fontja"])
def test_a_missing_package_is_one_line_that_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=r"pip install .*'\.\[figures\]'") as error:
        draw(trace(), tmp_path / "maps.png")
    assert "\n" not in str(error.value)
