"""Properties that hold for any input: a few examples in CI, 20,000 in `-m long`."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MANY = 20_000
"""Examples of each property in `pytest -m long`."""

SPECIAL = (
    "\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "\t",
    "\x00", "\x1b", "\u3000", "\u00a0", "\u00ad", "\u200b", "\u200d", "\ufeff",
    "\ufffd", "\u202e", "\u0301", "\u3099", "▁", "<s>", "</s>", "<unk>", "<0x0A>",
    "<0xE7>", "⁇", "<", "&", '"', "'", "\\", "</script>", "<!--", "]]>", "{{data}}",
    "[b]", "[/]", "Ａ", "ｶﾞ", "？！", "「", "。", "私は", "機械", "\ue000", "\U0001f469",
    "\U0010ffff", "ﷺ", "ß", "İ", "ﬁ", "I love machine learning", " ",
)  # fmt: skip
"""What line ends, markup, normalisation or a tokenizer might trip over."""


def texts(exclude: str = "", max_size: int = 20) -> st.SearchStrategy[str]:
    """Any Unicode text that UTF-8 can write, rich in what is SPECIAL."""
    parts = st.one_of(
        st.text(st.characters(codec="utf-8", exclude_characters=exclude), max_size=8),
        st.sampled_from([s for s in SPECIAL if not set(s) & set(exclude)]),
    )
    return st.lists(parts, max_size=max_size // 4).map("".join)


def property_of(
    examples: int, many: int = MANY, **strategies: st.SearchStrategy[Any]
) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """Make a test of a property: of some examples, and of `many` in the long profile.

    The property takes what the strategies draw; it sees no fixtures.
    """

    def decorate(holds: Callable[..., None]) -> Callable[[int], None]:
        long = pytest.param(many, marks=pytest.mark.long)

        @pytest.mark.parametrize("examples", [examples, long])
        def test(examples: int) -> None:
            slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
            wanted = settings(
                max_examples=examples, deadline=None, suppress_health_check=slow
            )
            wanted(given(**strategies)(holds))()

        test.__name__, test.__doc__ = holds.__name__, holds.__doc__
        return test

    return decorate
