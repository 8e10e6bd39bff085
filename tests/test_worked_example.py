"""The article's numbers, and those of an altered copy, against sums done elsewhere."""

import contextlib
import copy
import io
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from explain.steps import Part, Step
from explain.worked_example import Options, load, main, worked_example

ROOT = Path(__file__).parent.parent

# What the article prints, copied by hand from its own pages.
SELF = {
    "Q": [["1.05", "0.65"], ["0.92", "1.24"], ["1.57", "0.93"], ["0.78", "1.74"]],
    "K": [["0.45", "0.60"], ["0.12", "1.28"], ["0.69", "0.85"], ["-0.18", "1.86"]],
    "V": [
        ["1.10", "0.40", "0.65"], ["0.72", "0.96", "0.76"],
        ["1.66", "0.56", "0.96"], ["0.36", "1.44", "0.84"],
    ],
    "scores": [1.158, 1.6976, 1.6888, 2.1408],
    "scaled": [0.8188, 1.2004, 1.1942, 1.5138],
    "weights": [0.1688, 0.2472, 0.2457, 0.3383],
    "output": [0.893, 0.930, 0.818],
}  # fmt: skip
CROSS = {
    "q": [["1.17", "1.36"]],
    "V": [["0.940", "0.819", "0.590"], ["0.764", "0.918", "0.556"]],
    "scores": [1.6709, 1.6830, 1.7060, 1.7302],
    "scaled": [1.1815, 1.1901, 1.2063, 1.2234],
    "weights": [0.2453, 0.2474, 0.2515, 0.2558],
    "output": [0.847, 0.887, 0.577],
}
CONCATENATED = "[0.893, 0.930, 0.818, 1.020, 0.710, 0.640, 0.640, 1.210, 0.580]"
PROJECTED = "[0.8742, 0.9230, 0.6962]"
SOFTMAX = ["0.99904", "0.00091", "0.00005"]


def part(name: str, data: Mapping[str, Any] | None = None, **options: Any) -> Part:
    (found,) = worked_example(data or load(), Options(part=name, **options))
    return found


def step(found: Part, title: str) -> Step:
    (chosen,) = (s for s in found.steps if s.title.startswith(title))
    return chosen


def vectors(found: Step) -> list[list[str]]:
    """Return the vectors in a step's last column, as printed."""
    return [row[-1].strip("[]").split(", ") for row in found.rows]


def column(found: Step, place: int, rows: int) -> list[float]:
    return [float(row[place]) for row in found.rows[:rows]]


def test_self_attention_of_love_is_the_articles() -> None:
    found = part("self")
    assert vectors(step(found, "Queries")) == SELF["Q"]
    assert vectors(step(found, "Keys")) == SELF["K"]
    assert vectors(step(found, "Values")) == SELF["V"]
    assert column(step(found, "Scores"), 2, 4) == SELF["scores"]
    assert column(step(found, "Scaling"), 2, 4) == SELF["scaled"]
    # The article's last weight is 0.0001 up, so that its four add up to 1 as printed.
    weights = column(step(found, "Softmax"), 1, 4)
    assert weights == pytest.approx(SELF["weights"], abs=1.01e-4)
    assert step(found, "Weighted").rows[-1] == ("sum = output", "[0.893, 0.930, 0.818]")


def test_cross_attention_is_the_articles() -> None:
    found = part("cross")
    assert vectors(step(found, "Query")) == CROSS["q"]
    assert vectors(step(found, "Values"))[:2] == CROSS["V"]
    scores = column(step(found, "Scores"), 2, 4)
    assert scores == pytest.approx(CROSS["scores"], abs=1.01e-4)
    scaled = column(step(found, "Scaling"), 2, 4)
    assert scaled == pytest.approx(CROSS["scaled"], abs=1.01e-4)
    weights = column(step(found, "Softmax"), 1, 4)
    assert weights == pytest.approx(CROSS["weights"], abs=1.01e-4)
    assert step(found, "Weighted").rows[-1] == ("sum = output", "[0.847, 0.887, 0.577]")


def test_heads_are_concatenated_and_projected_as_in_the_article() -> None:
    found = part("multi-head")
    assert step(found, "Concatenation").rows[-1][-1] == CONCATENATED
    assert step(found, "Projection").rows[-1][-1] == PROJECTED


def test_softmax_is_the_true_one_and_the_popular_one_is_named() -> None:
    found = step(part("softmax"), "Softmax")
    assert [row[1] for row in found.rows[:3]] == SOFTMAX
    assert [row[2] for row in found.rows[:3]] == ["0.90", "0.09", "0.01"]
    assert "not the softmax of 10, 3, 0.1" in found.plain


@pytest.mark.parametrize("token", ["I", "love", "machine", "learning"])
def test_an_altered_embedding_alters_every_step_as_numpy_says(token: str) -> None:
    data = load()
    data["self"]["X"][1] = [-0.7, 2.3]
    at = data["self"]["tokens"].index(token)
    x, w_q, w_k, w_v = (np.array(data["self"][n]) for n in ("X", "W_Q", "W_K", "W_V"))
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    check_steps(part("self", data, token=token), q, k, v, at, places=(2, 2, 2))


def test_an_altered_decoder_vector_alters_every_step_as_numpy_says() -> None:
    data = load()
    data["cross"]["x"] = [1.9, -0.4]
    data["cross"]["encoder_output"][2] = [-0.33, 0.71]
    x, memory = (
        np.array([data["cross"]["x"]]),
        np.array(data["cross"]["encoder_output"]),
    )
    w_q, w_k, w_v = (np.array(data["cross"][n]) for n in ("W_Q", "W_K", "W_V"))
    q, k, v = x @ w_q, memory @ w_k, memory @ w_v
    check_steps(part("cross", data), q, k, v, 0, places=(2, 3, 3))


def check_steps(
    found: Part,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    at: int,
    places: tuple[int, int, int],
) -> None:
    """Hold every printed number of an attention against plain NumPy."""
    scores = k @ q[at]
    scaled = scores / np.sqrt(2)
    weights = np.exp(scaled) / np.exp(scaled).sum()
    tables = {"Quer": (q, places[0]), "Keys": (k, places[1]), "Values": (v, places[2])}
    for title, (matrix, decimals) in tables.items():
        assert vectors(step(found, title)) == written(matrix, decimals)
    asked = [number for row in written(q, places[0])[at : at + 1] for number in row]
    for row, key, score in zip(
        step(found, "Scores").rows, written(k, places[1]), scores, strict=True
    ):
        pairs = (
            f"{bracketed(a)}×{bracketed(b)}" for a, b in zip(asked, key, strict=True)
        )
        assert row[1:] == (" + ".join(pairs), f"{score:.4f}")
    rows = step(found, "Scaling").rows
    for row, score, value in zip(rows, scores, scaled, strict=True):
        assert row[1:] == (f"{score:.4f} ÷ 1.4142", f"{value:.4f}")
    rows = step(found, "Softmax").rows
    assert [row[1] for row in rows] == [f"{w:.4f}" for w in (*weights, 1)]
    rows = step(found, "Weighted").rows
    for row, weight, value in zip(rows, weights, written(v, places[2]), strict=False):
        assert row[1] == f"{weight:.4f} × [{', '.join(value)}]"
    output = f"[{', '.join(written((weights @ v)[None], 3)[0])}]"
    assert rows[-1][1] == output


def written(matrix: np.ndarray, decimals: int) -> list[list[str]]:
    return [[f"{number + 0.0:.{decimals}f}" for number in row] for row in matrix]


def bracketed(number: str) -> str:
    return f"({number})" if number.startswith("-") else number


def test_altered_heads_and_values_alter_their_parts_as_numpy_says() -> None:
    data = load()
    data["multi-head"]["heads"][1] = [0.11, -0.52, 2.03]
    heads = np.array(data["multi-head"]["heads"])
    output = heads.reshape(-1) @ np.array(data["multi-head"]["W_O"])
    found = step(part("multi-head", data), "Projection")
    assert found.rows[-1][-1] == f"[{', '.join(written(output[None], 4)[0])}]"
    data["softmax"]["similarities"] = [2.0, 1.5, -1.0]
    weights = np.exp([2.0, 1.5, -1.0]) / np.exp([2.0, 1.5, -1.0]).sum()
    mixed = weights @ np.array(data["softmax"]["values"])
    found = step(part("softmax", data), "Weighted")
    assert found.rows[-1][-1] == f"[{', '.join(written(mixed[None], 5)[0])}]"


def test_a_causal_mask_leaves_what_came_before() -> None:
    found = part("self", mask=True)
    masked = step(found, "With a causal mask")
    # By hand: exp(0.8188) = 2.2678 and exp(1.2004) = 3.3214 are left for love.
    assert [row[2] for row in masked.rows[:4]] == ["0.4058", "0.5942", "·", "·"]
    assert masked.rows[-1][1] == "[0.893, 0.930, 0.818]"
    assert masked.rows[-1][2] == "[0.874, 0.733, 0.715]"
    triangle = step(found, "The masked weights").rows
    assert triangle[0] == ("I", "1.0000", "·", "·", "·")
    assert (
        "changes nothing"
        in step(part("self", mask=True, token="learning"), "With a causal mask").plain
    )


def test_a_token_chooses_its_parts() -> None:
    def headings(**options: Any) -> list[str]:
        found = worked_example(load(), Options(**options))
        return [part.heading.split(":")[0] for part in found]

    assert headings() == [
        "Self-attention",
        "Cross-attention",
        "Several heads",
        "Softmax",
    ]
    assert headings(token="love") == ["Self-attention", "Several heads"]
    assert headings(token="machine") == ["Self-attention"]
    assert headings(token="私は") == ["Cross-attention"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--token", "hate"], "no token 'hate': give one of I, love, machine"),
        (["--part", "cross", "--token", "love"], "no token 'love': give one of 私は"),
        (["--part", "cross", "--mask"], "--mask changes self-attention alone"),
        (["--token", "私は", "--mask"], "--mask changes self-attention alone"),
        (["--part", "both"], "invalid choice 'both'"),
    ],
)
def test_a_wrong_choice_is_one_line_and_exit_code_2(
    arguments: Sequence[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert said in written.err and written.err.count("\n") == 1


def test_the_command_speaks_utf_8_in_any_locale() -> None:
    command = [sys.executable, "-m", "explain.worked_example", "--token", "hate"]
    environment = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PATH": ""}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True)
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert "give one of I, love, machine, learning, 私は" in ran.stderr.decode("utf-8")


def test_everything_prints_within_80_columns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", written)
    assert main(["--mask"]) == 0
    written.flush()
    text = written.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]
    for shown in ("Cross-attention: how 私は attends", "0.99904", "0.4058", PROJECTED):
        assert shown in text
    assert max(map(cell_len, text.split("\n"))) == 80


def test_the_blocks_in_the_docs_are_what_is_printed() -> None:
    text = (ROOT / "docs" / "attention.md").read_text("utf-8")
    command = r"```console\n\$ python -m explain\.worked_example ?(.*)\n([^`]*)```"
    blocks = re.findall(command, text)
    assert len(blocks) >= 5
    for arguments, block in blocks:
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            assert main(arguments.split()) == 0
        for step in re.split(r"\n(?=\d+  )", block):
            assert step.strip() in shown.getvalue()


def test_the_data_is_not_changed_by_printing_it() -> None:
    data = load()
    before = copy.deepcopy(data)
    worked_example(data, Options(mask=True))
    assert data == before
