"""Translation by CTranslate2, on a folder that `model.export` wrote; without torch.

CTranslate2 (Klein et al. 2020, "The OpenNMT Neural Machine Translation Toolkit") runs
the same network, with the same rules of search, in C++.
"""

import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

from model.checkpoint import RunError, model_config, read_config, sha256
from model.config import ModelConfig
from model.engine import Hypothesis, batches, in_order, threads_for

WEIGHTS = "model.bin"
SOURCE_TOKENS = 1_024
"""Tokens of sources that a thread translates together, at most."""
BATCHES_AT_ONCE = 8
"""For each thread; a call of CTranslate2 does not end before its time for a Ctrl-C."""
VOCABULARIES = ("source_vocabulary.json", "target_vocabulary.json")
EXPORTED = (WEIGHTS, *VOCABULARIES)
"""What an export has besides a run's tokenizers; config.json has their hashes."""


def check_ctranslate2(device: str = "cpu") -> None:
    """Raise `ValueError` unless CTranslate2 is installed and computes on a device."""
    try:
        import ctranslate2
    except ImportError:
        raise ValueError(
            "CTranslate2 is not installed: pip install -c constraints.txt '.[export]'"
        ) from None
    if device != "cpu" and not (
        device == "cuda" and ctranslate2.get_cuda_device_count()
    ):
        usable = "cpu or cuda" if ctranslate2.get_cuda_device_count() else "cpu"
        raise ValueError(f"--device {device} is not usable here: give {usable}")


class CTranslate2Engine:
    """An exported model, its vocabularies included: an `Engine`.

    Scores are larger than our own search's by a tiny number, the same for all of a
    sentence, which `model.search` explains.
    """

    def __init__(
        self,
        translator: Any,
        config: ModelConfig,
        source: Sequence[str],
        target: Sequence[str],
    ) -> None:
        self.config = config
        self._translator = translator
        self._workers: int = translator.num_translators
        self._source = source
        self._target_ids = {token: number for number, token in enumerate(target)}

    @classmethod
    def load(cls, folder: Path, device: str = "cpu") -> "CTranslate2Engine":
        """Return the engine of an exported model.

        Raises `RunError` where there is none or it is damaged, and `ValueError` where
        CTranslate2 is missing or cannot compute on the device.
        """
        check_ctranslate2(device)
        import ctranslate2

        about = read_config(folder)
        config = model_config(about, folder / "config.json")
        hashes = about.get("exported")
        if not isinstance(hashes, dict):
            raise RunError(
                f"{folder} holds no model for CTranslate2: make one with `python -m "
                f"model.export {quote(str(folder))} --to ctranslate2 --out OUT`, and "
                "name OUT"
            )
        for path in (folder / name for name in EXPORTED):
            if not path.is_file() or sha256(path) != hashes.get(path.name):
                raise RunError(f"{path} is missing or damaged: export the run again")
        try:
            threads = _threads() if device == "cpu" else 1
            translator = ctranslate2.Translator(
                str(folder), device=device, inter_threads=threads, intra_threads=1
            )
            source, target = (
                json.loads((folder / name).read_text("utf-8")) for name in VOCABULARIES
            )
        except (RuntimeError, ValueError, OSError) as error:
            if "out of memory" in str(error):  # of a GPU: the export is in order
                raise
            raise RunError(
                f"CTranslate2 cannot load {folder} ({error}): export the run again"
            ) from None
        if [len(source), len(target)] != [
            config.source_vocabulary,
            config.target_vocabulary,
        ]:
            raise RunError(f"{folder} has other vocabularies: export the run again")
        return cls(translator, config, source, target)

    def translate(
        self,
        sources: Sequence[Sequence[int]],
        beam: int = 1,
        length_penalty: float = 1.0,
        max_steps: int | None = None,
    ) -> list[list[Hypothesis]]:
        cap = self.config.max_length
        if max_steps is not None:
            cap = min(max_steps, cap)
        threads = threads_for(len(sources), self._workers)
        lengths = [len(ids) for ids in sources]
        cut = batches(lengths, beam, threads, limit=beam * SOURCE_TOKENS)
        together = threads * BATCHES_AT_ONCE
        found = []
        for first in range(0, len(cut), together):
            some = cut[first : first + together]
            asked = [[sources[row] for row in rows] for rows in some]
            found.append(self._translate(asked, beam, length_penalty, cap))
        return in_order(cut, found)

    def _translate(
        self,
        batches: Sequence[Sequence[Sequence[int]]],
        beam: int,
        length_penalty: float,
        cap: int,
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of the sentences of some batches, longest first."""
        results = self._translator.translate_batch(
            [[self._source[token] for token in ids] for ids in chain(*batches)],
            beam_size=beam,
            num_hypotheses=beam,
            length_penalty=length_penalty,
            max_decoding_length=cap,
            max_input_length=0,
            # CTranslate2 sorts and cuts them as they are.
            max_batch_size=max(len(batch[0]) * len(batch) for batch in batches),
            batch_type="tokens",
            return_scores=True,
        )
        return [
            [
                self._hypothesis(tokens, score, length_penalty, cap)
                for tokens, score in zip(found.hypotheses, found.scores, strict=True)
            ]
            for found in results
        ]

    def _hypothesis(
        self, tokens: Sequence[str], score: float, length_penalty: float, cap: int
    ) -> Hypothesis:
        ids = tuple(self._target_ids[token] for token in tokens)
        complete = len(ids) < cap
        total = score * (len(ids) + complete) ** length_penalty
        return Hypothesis(ids, total, score, complete)


def _threads() -> int:
    """Return how many threads are to translate, each a batch of its own.

    A model as small as these gains nothing from several threads in one product.
    """
    named = os.environ.get("OMP_NUM_THREADS", "")
    if named.isdecimal() and int(named):
        return int(named)
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
