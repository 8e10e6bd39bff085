"""How people type English: marks, capitals, contractions and apostrophes."""

import random
import re

NEGATIVE = ("do", "does", "did", "is", "are", "was", "were", "have", "has", "could") + (
    *("should", "would", "must"),
)
EXPANSIONS = {
    **{f"{word}n't": f"{word} not" for word in NEGATIVE},
    "can't": "cannot",
    "won't": "will not",
}
BE = {"i": "'m", "you": "'re", "we": "'re", "they": "'re"}
BE |= {"he": "'s", "she": "'s", "it": "'s"}
FULL = {"'m": "am", "'re": "are", "'s": "is", "'ll": "will", "'ve": "have"}
ASKING = re.compile(
    r"(do|does|did|is|are|was|were|am|have|has|had|can|could|will|would|shall|should"
    r"|may|must|might|what|who|whose|which|where|when|why|how|whom)(n't|'s|'re)?\b"
    r"|(can't|won't)\b",
    re.IGNORECASE,
)
PRONOUN = "I|[Yy]ou|[Ww]e|[Tt]hey|[Hh]e|[Ss]he|[Ii]t"
# In "what it is" or "taller than I am", the verb cannot be shortened.
APART = "".join(
    f"(?<!{word} )" for word in ("than", "as", "what", "where", "how", "who")
)
# He's finished, it's been: 's may stand for has, so it stays.
MAYBE_HAS = r"(?!\w+(?:ed|en)\b|been|got|gone|done|had|made|lost|left|come|become)"


def _expand(text: str, rng: random.Random) -> str:
    """Write out contractions, but none of a question (Don't you ...?)."""

    def replace(match: re.Match[str]) -> str:
        if rng.random() < 0.5:
            return match[0]
        full = EXPANSIONS[match[0].lower()]
        return full.capitalize() if match[0][0].isupper() else full

    if not text.endswith("?"):
        known = "|".join(re.escape(word) for word in EXPANSIONS)
        text = re.sub(rf"\b(?:{known})(?= \w)", replace, text, flags=re.IGNORECASE)
    pronouns = "I|[Yy]ou|[Ww]e|[Tt]hey"
    text = re.sub(
        rf"\b({pronouns})('m|'re|'ll|'ve)(?= \w)",
        lambda m: m[0] if rng.random() < 0.5 else f"{m[1]} {FULL[m[2]]}",
        text,
    )
    return re.sub(
        rf"\b([Hh]e|[Ss]he|[Ii]t)('s|'ll)(?= {MAYBE_HAS}\w)",
        lambda m: m[0] if rng.random() < 0.5 else f"{m[1]} {FULL[m[2]]}",
        text,
    )


def _contract(text: str, rng: random.Random) -> str:
    """Contract full forms where the next word belongs to the same clause."""

    def negative(match: re.Match[str]) -> str:
        short = next(k for k, v in EXPANSIONS.items() if v == match[0].lower())
        if rng.random() < 0.5:
            return match[0]
        return short.capitalize() if match[0][0].isupper() else short

    def pronoun(match: re.Match[str]) -> str:
        if rng.random() < 0.5:
            return match[0]
        return match[1] + ("'ll" if match[2] == "will" else BE[match[1].lower()])

    if not text.endswith("?"):
        known = "|".join(re.escape(word) for word in EXPANSIONS.values())
        text = re.sub(rf"\b(?:{known})(?= \w)", negative, text, flags=re.IGNORECASE)
    text = re.sub(
        rf"{APART}\b({PRONOUN}) (am|are|is|will)(?= \w)",
        lambda m: pronoun(m) if _agrees(m[1].lower(), m[2]) else m[0],
        text,
    )
    return text


def _agrees(pronoun: str, verb: str) -> bool:
    return verb == "will" or verb == FULL[BE[pronoun]]


def vary(english: str, rng: random.Random) -> str:
    """Return an English sentence as somebody might type it, with the same meaning."""
    change = rng.random()
    if change < 0.3:
        english = _expand(english, rng)
    elif change < 0.6:
        english = _contract(english, rng)
    asks = ASKING.match(english) is not None
    droppable = english[-1:] in (".", "!") or (english[-1:] == "?" and asks)
    if droppable and not english.endswith((".m.", "...")) and rng.random() < 0.4:
        english = english[:-1]
    case = rng.random()
    if case < 0.25:
        english = english[:1].lower() + english[1:]
        english = re.sub(r"\bI\b", "i", english)
    elif case < 0.5:
        english = english.lower()
    if rng.random() < 0.3:
        english = english.replace("'", "’")
    return english
