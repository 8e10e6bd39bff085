"""Turn a run directory into what other programs read.

    python -m model.export runs/tatoeba --to ctranslate2 --out out

writes a folder for CTranslate2 (https://github.com/OpenNMT/CTranslate2), with which
`translate.py --engine ctranslate2 --model out` translates; `--to hub-folder` writes one
to upload to the Hugging Face Hub, from where `--model hub:owner/name` fetches it.
"""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from model.card import model_card, public
from model.checkpoint import RunError, load_model, read_config, sha256, write_config
from model.command import parse, run
from model.hub import local_folder
from model.serving import EXPORTED, check_ctranslate2

Quantization = Literal["float32", "int8"]
SHARED = "model.safetensors"


def export_ctranslate2(
    folder: Path, out: Path, quantization: Quantization = "float32"
) -> None:
    """Write a run directory's model, and all that translates with it, for CTranslate2.

    The weights are those of the run, unchanged (`float32`), or its matrices as 8-bit
    integers with a scale for each row (`int8`), about a quarter of the size. Raises
    `RunError` where there is no run or it is damaged, `FileExistsError` where out is
    there already, and `ValueError` where CTranslate2 is missing. Paths of this machine
    stay here.
    """
    check_ctranslate2()
    config = read_config(folder)
    with _new_folder(out) as inside:
        spec = _spec(folder)
        spec.validate()
        spec.optimize(quantization=quantization)
        spec.save(str(inside))
        _copy(folder, inside, config["files"])
        theirs = json.loads((inside / "config.json").read_text("utf-8"))
        made = {name: sha256(inside / name) for name in EXPORTED}
        ours = {"quantization": quantization, "exported": made}
        write_config(inside, public(config) | ours | theirs)


def export_hub_folder(folder: Path, out: Path, licence: str | None = None) -> None:
    """Write a run directory's model as a folder to share, with a model card.

    Paths of this machine stay here: config.json and the card name the corpora by their
    files' names. licence is a Hub licence id; without it the starter corpus's MIT
    holds, or that of the corpora. Raises as `export_ctranslate2` does, and `RunError`
    where the training has not finished.
    """
    config = read_config(folder)
    load_model(folder)  # whole, and fits its config.json
    card = model_card(folder, config, out.name, licence)
    with _new_folder(out) as inside:
        shutil.copyfile(folder / SHARED, inside / SHARED)
        _copy(folder, inside, config["files"])
        (inside / "README.md").write_text(card, "utf-8")
        write_config(inside, public(config))


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """Give a folder to write into, which takes its name, out, when all is written."""
    if out.exists():
        raise FileExistsError(f"{out} is there already: give another --out")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {out.parent}: make it first")
    inside = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        yield inside
        inside.chmod(0o777 & ~_umask())  # mkdtemp's is for its owner alone
        inside.rename(out)
    finally:
        shutil.rmtree(inside, ignore_errors=True)


def _umask() -> int:
    """Return the permissions that new files lack; it can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _copy(folder: Path, inside: Path, names: Mapping[str, str]) -> None:
    """Copy the tokenizers and word lists of a run, which its config.json names."""
    for name in names:
        shutil.copyfile(folder / name, inside / name)


def _spec(folder: Path) -> Any:
    """Return CTranslate2's specification of a run's model, its weights set."""
    from ctranslate2.specs import TransformerSpec

    model = load_model(folder)
    config, weights = model.config, _Weights(model.state_dict())
    depths = (config.encoder_layers, config.decoder_layers)
    spec = TransformerSpec.from_config(depths, config.heads)
    spec.encoder.embeddings[0].weight = weights["source_embedding.weight"]
    spec.decoder.embeddings.weight = weights["target_embedding.weight"]
    spec.decoder.projection.weight = weights["target_embedding.weight"]
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        # Without these CTranslate2 would compute its own, for 2,048 positions.
        stack.position_encodings.encodings = model.positions.numpy()
        weights.norm(stack.layer_norm, f"{side}_norm")
        for number, layer in enumerate(stack.layer):
            weights.layer(layer, f"{side}.{number}")
    for side, register, size in (
        ("source", spec.register_source_vocabulary, config.source_vocabulary),
        ("target", spec.register_target_vocabulary, config.target_vocabulary),
    ):
        register(_pieces(folder / f"{side}.spm", size))
    spec.config.layer_norm_epsilon = model.encoder_norm.eps
    return spec


class _Weights:
    """A model's weights by name, as arrays, and how they are put into layers."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights

    def __getitem__(self, name: str) -> Any:
        return self._weights[name].numpy().copy()  # quantizing changes it in place

    def norm(self, spec: Any, name: str) -> None:
        spec.gamma, spec.beta = self[f"{name}.weight"], self[f"{name}.bias"]

    def layer(self, spec: Any, name: str) -> None:
        """Set the sub-layers of an encoder or decoder layer."""
        self.norm(spec.self_attention.layer_norm, f"{name}.self_attention_norm")
        self._attention(spec.self_attention, f"{name}.self_attention", [slice(0, 3)])
        if f"{name}.cross_attention.w_o" in self._weights:
            cross = [slice(0, 1), slice(1, 3)]
            self.norm(spec.attention.layer_norm, f"{name}.cross_attention_norm")
            self._attention(spec.attention, f"{name}.cross_attention", cross)
        self.norm(spec.ffn.layer_norm, f"{name}.feed_forward_norm")
        for linear, part in (
            (spec.ffn.linear_0, "inner"),
            (spec.ffn.linear_1, "outer"),
        ):
            linear.weight = self[f"{name}.feed_forward.{part}.weight"]
            linear.bias = self[f"{name}.feed_forward.{part}.bias"]

    def _attention(self, spec: Any, name: str, parts: list[slice]) -> None:
        """Set W_Q, W_K and W_V, those of a slice one above the other, and W_O."""
        w_qkv = self[f"{name}.w_qkv"]  # (3, D, D)
        width = w_qkv.shape[-1]
        matrices = [w_qkv[part].reshape(-1, width) for part in parts]
        for linear, matrix in zip(
            spec.linear, [*matrices, self[f"{name}.w_o"]], strict=True
        ):
            linear.weight = matrix


def _pieces(path: Path, size: int) -> list[str]:
    """Return a tokenizer's tokens in the order of their ids."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_proto=path.read_bytes())
    if len(pieces) != size:
        raise RunError(
            f"{path} has {len(pieces)} tokens, and the model {size}: train it again"
        )
    return [pieces.id_to_piece(number) for number in range(size)]


@dataclass(frozen=True)
class Arguments:
    """Write a trained model in a form that other programs read."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory that train.py made, or hub:OWNER/NAME."""
    to: Literal["ctranslate2", "hub-folder"]
    """What to write: a folder for CTranslate2, or one for the Hugging Face Hub."""
    out: Path
    """The folder to make."""
    quantization: Quantization = "float32"
    """Precision of the matrices for CTranslate2: int8 is smaller and less exact."""
    license: str | None = None
    """For the Hub: the licence's id, such as cc-by-2.0; that of the corpora if none."""

    def __post_init__(self) -> None:
        if self.quantization != "float32" and self.to != "ctranslate2":
            raise ValueError("--quantization goes with --to ctranslate2")
        if self.license is not None and self.to != "hub-folder":
            raise ValueError("--license goes with --to hub-folder")
        if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", self.license or "mit"):
            raise ValueError(
                f"--license {self.license}: give an id such as mit or cc-by-2.0"
            )


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return run(lambda: _main(parse(Arguments, argv, "-m model.export")), "model.export")


def _main(arguments: Arguments) -> None:
    folder = local_folder(arguments.run)
    if arguments.to == "ctranslate2":
        export_ctranslate2(folder, arguments.out, arguments.quantization)
    else:
        export_hub_folder(folder, arguments.out, arguments.license)
    size = sum(path.stat().st_size for path in arguments.out.iterdir()) / 1e6
    print(f"{arguments.out}: {size:.1f} MB")


if __name__ == "__main__":
    sys.exit(main())
