"""The model card of a shared model: what it is, learned from and scores."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from model.checkpoint import RunError
from model.command import printable


@dataclass(frozen=True)
class Figures:
    """What a card says of a training in numbers."""

    pairs: int
    parameters: int
    dev_sentences: int
    """How many were translated for the scores."""
    step: int
    """Whose weights are the best."""
    chrf: float
    bleu: float
    signatures: str


_SCORES = {"chrf": "chrF", "bleu": "BLEU"}
_OURS = "trained with tiny-enja"


def run_card(
    run: Path,
    config: Mapping[str, Any],
    corpora: Sequence[str],
    figures: Figures,
    sentence: str,
) -> str:
    """Return the README.md that a training writes into its run, whose config this is.

    corpora are those of this training alone; a fine-tuned model has learned from others
    before. sentence is one to try it with.
    """
    source, target = config["languages"]
    shape = config["model"]
    sources, targets = shape["source_vocabulary"], shape["target_vocabulary"]
    return f"""# {run.name}

A Transformer that translates {source} to {target}, {_OURS}.

- Data: {", ".join(map(corpus_name, corpora))}; {figures.pairs:,} pairs
  after cleaning. Their licence is that of the corpora.{_origin(config, corpora)}
- Size: {figures.parameters:,} parameters; vocabularies of {sources:,}
  and {targets:,} tokens.
- Training: {config["steps"]:,} steps in {config["precision"]}; the weights are
  those of step {figures.step:,}, averaged.
- On dev ({figures.dev_sentences:,} sentences, greedy): chrF
  {figures.chrf:.1f}, BLEU {figures.bleu:.1f} ({figures.signatures}).

    python translate.py --model {quote(str(run))} "{sentence}"
"""


def _origin(config: Mapping[str, Any], corpora: Sequence[str]) -> str:
    """Return what a card says of the run that a fine-tuned model started from."""
    started_from = config["started_from"]
    if not started_from:
        return ""
    before = config["learned_from"][len(corpora) :]
    names = ", ".join(dict.fromkeys(map(corpus_name, before)))
    return (
        f"\n- Started from: {printable(started_from)}, which learned from\n"
        f"  {printable(names)}."
    )


def model_card(
    run: Path, config: Mapping[str, Any], name: str, licence: str | None = None
) -> str:
    """Return the README.md of a run that is shared under a name.

    It is the run's own, under the front matter that the Hugging Face Hub reads. Raises
    `RunError` where that is missing, or is another.
    """
    path = run / "README.md"
    text = path.read_text("utf-8") if path.is_file() else ""
    if _OURS not in text:
        raise RunError(
            f"{path} is not the one that training writes at its end: delete it, if "
            f"there is one, and let `python train.py --resume {quote(str(run))}` write "
            "it"
        )
    about, _, command = text.partition("\n")[2].rpartition("\n    python translate.py ")
    use = _USE.format(name=name, sentence=command.partition('"')[2].rpartition('"')[0])
    head = _front_matter(run, config, name, licence)
    return f"---\n{head}---\n\n# {name}\n{about}\n{use}"


def corpus_name(corpus: str) -> str:
    """Return what a corpus is called elsewhere: without the folders of this machine.

    A data set of the Hub keeps its address, which says whose work it is.
    """
    if corpus.startswith("hub:") or corpus == "starter":
        return corpus
    name = ",".join(Path(part).name for part in corpus.split(","))
    return f"./{name}" if name == "starter" else name  # which is not the embedded one


def public(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what config.json says without the command and the paths of this machine.

    Of files of one name all but the first get a number.
    """
    learned_from = list(map(corpus_name, config["learned_from"]))
    shared = {key: config[key] for key in config if key not in {"command", "argv"}}
    corpora: dict[str, str] = {}
    for path, digest in config["corpora"].items():
        name = first = corpus_name(path)
        number = 1
        while name in corpora:
            number += 1
            name = f"{first} ({number})"
        corpora[name] = digest
    return shared | {"corpora": corpora, "learned_from": learned_from}


_USE = """To translate with it, from a checkout of tiny-enja:

    python translate.py --model hub:OWNER/{name} "{sentence}"

`config.json` has the recipe, the versions and the SHA-256 of the corpora.
"""


def _front_matter(
    run: Path, config: Mapping[str, Any], name: str, licence: str | None
) -> str:
    """Return the card's head; JSON is YAML as well, and needs no library."""
    starter = set(config["learned_from"]) == {"starter"}
    fields: dict[str, Any] = {
        "language": config["languages"],
        "license": licence or ("mit" if starter else "other"),
        "license_name": None if licence or starter else "that-of-the-corpora",
        "pipeline_tag": "translation",
        "tags": ["translation", "transformer", "tiny-enja"],
        "datasets": _datasets(config),
        "model-index": [{"name": name, "results": _results(run, config)}],
    }
    return "".join(
        f"{key}: {json.dumps(value, ensure_ascii=False)}\n"
        for key, value in fields.items()
        if value
    )


def _datasets(config: Mapping[str, Any]) -> list[str]:
    """Return the ids of the corpora that are on the Hub."""
    names = [*config["corpora"], *config["learned_from"]]
    on_hub = [name for name in names if name.startswith("hub:")]
    ids = ("/".join(name.removeprefix("hub:").split("/")[:2]) for name in on_hub)
    return list(dict.fromkeys(ids))


def _results(run: Path, config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the scores of a run's metrics.jsonl as the Hub lists them."""
    path = run / "metrics.jsonl"
    if not path.is_file():
        raise RunError(f"{path} is missing: share the run that training made")
    with path.open("rb") as file:
        lines = [json.loads(line) for line in file]
    results = []
    for part in ("dev", "test"):
        scored = [line for line in lines if f"{part}_chrf" in line]
        if scored:
            best = max(scored, key=lambda line: line[f"{part}_chrf"])
            source, target = config["languages"]
            results.append(
                {
                    "task": {"type": "translation", "name": f"{source} to {target}"},
                    "dataset": {"type": "text", "name": part},
                    "metrics": [
                        {
                            "type": kind,
                            "name": shown,
                            "value": round(best[f"{part}_{kind}"], 1),
                        }
                        for kind, shown in _SCORES.items()
                    ],
                }
            )
    return results
