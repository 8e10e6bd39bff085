"""Train a translation model on pairs of sentences."""

import copy
import hashlib
import math
import os
import shutil
import signal
import sys
import time
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from shlex import join, quote
from typing import Annotated, Any, Literal

if __name__ == "__main__":
    # Libraries take seconds to load, which count. Ctrl-C ends that without a traceback;
    # then `run` takes over.
    BEGAN = time.perf_counter()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

import numpy as np
import torch
import tyro
from tqdm import tqdm

from data.batching import Batch, EncodedPairs, epochs, make_batch, plan_batches
from data.corpus import COLUMNS, Pair, split_columns
from data.metrics import score
from data.preparation import STARTER, Material, corpus_hashes, prepare
from data.text import read_file
from data.tokenizer import PADDING, Side, Tokenizer
from explain.glossary import write_glossary
from explain.starter import starter_report
from explain.translator import Translator
from model.card import Figures, run_card
from model.checkpoint import (
    MOST_BYTES,
    OLDER,
    RunError,
    drop_latest_state,
    load_model,
    load_state,
    model_config,
    read_config,
    refuse_export,
    save_config,
    save_state,
    save_weights,
    sync,
    write_atomically,
    write_config,
)
from model.command import (
    INTERRUPTED,
    Expendable,
    Stop,
    check_device,
    parse,
    printable,
    run,
    stop_request,
)
from model.config import ModelConfig
from model.distributed import Processes, is_restart, joined_processes, started_as
from model.engine import Precision
from model.folders import (
    check_free,
    folder_beside,
    lock_run,
    put_in_place,
    remove_leftovers,
)
from model.hardware import doubt
from model.hub import local_folder
from model.loss import batch_loss
from model.memory import release_freed_memory, tune_memory
from model.metrics import append_metrics, cut_metrics, end_is_recorded, sync_metrics
from model.presets import PRESETS, PresetName, Shape
from model.resume import check_corpora, check_unchanged, what_differs
from model.schedule import (
    TRIAL_STEPS,
    UNTIMED_STEPS,
    Schedule,
    seconds_for_steps,
    typical_step,
)
from model.search import TorchEngine
from model.training import (
    Diverged,
    Recipe,
    TrainingState,
    common_precisions,
)
from model.transformer import Transformer

DEV_TRANSLATED, SAMPLES = 500, 3
MOST = 10**9
"""Of steps, epochs or minutes."""
SAVE_SECONDS = 60.0
LOG_STEPS = 10
ARTICLE = {"en": "I love machine learning", "ja": "私は機械学習が大好きです。"}
"""The sentence that the articles on attention take; never trained on."""
ARTICLE_GOLD = "0-0 1-4 2-1 3-2 3?3 1?5"
"""Its word alignment, by the starter corpus's words."""


@dataclass(frozen=True)
class Arguments:
    """Train a Transformer to translate, on pairs of sentences.

    The run directory gets the model, its tokenizers, and all that is needed to go on.
    """

    corpus: tuple[str, ...] = (STARTER,)
    """What to learn from, mixed: starter, FILE.tsv, two files FILE.en,FILE.ja, or
    tables: FILE.jsonl, .csv or .parquet, a folder of .jsonl or .parquet, or
    hub:OWNER/NAME/CONFIG."""
    columns: tuple[str, str] = COLUMNS
    """The English and the Japanese column of tables; one may have its own, as in
    FILE.csv:english,japanese. Those inside `translation` are found too."""
    dev: str | None = None
    """Sentences to validate on; without them a share of the corpus is held out."""
    test: str | None = None
    """Sentences to score once, at the end; never trained on, as those of --dev."""
    out: Path = Path("runs/starter")
    """The run directory to make."""
    overwrite: bool = False
    """Replace the run directory if there is one."""
    preset: PresetName = "tiny"
    """What to start from: tiny (for starter), small (for others), mini (for them on a
    slow processor) or base (an hour)."""
    direction: Literal["en-ja", "ja-en"] = "en-ja"
    """en-ja: the first column is the source. ja-en: the second is."""
    steps: int | None = None
    """Train for this many batches …"""
    epochs: float | None = None
    """… or this many passes over the corpus …"""
    minutes: float | None = None
    """… or about this long, everything included; else as long as the preset."""
    validations: int = 8
    """How often to translate the dev sentences on the way."""
    seed: int = 1
    """Where all randomness starts from."""
    device: str = "cpu"
    """Where to compute: cpu, cuda or mps."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 where the processor has it and a trial finds it faster, else fp32."""
    resume: Path | None = None
    """Go on with the interrupted training in this directory; takes no other flag."""
    init: Path | None = None
    """Start from the weights and tokenizers of this run, or of hub:OWNER/NAME."""
    shape: Annotated[Shape, tyro.conf.arg(name="")] = field(default_factory=Shape)
    recipe: Annotated[Recipe, tyro.conf.arg(name="")] = field(default_factory=Recipe)

    def __post_init__(self) -> None:
        lengths = [self.steps, self.epochs, self.minutes]
        if sum(length is not None for length in lengths) > 1:
            raise ValueError("give one of --steps, --epochs and --minutes")
        if any(length is not None and not 0 < length <= MOST for length in lengths):
            raise ValueError(
                f"--steps, --epochs and --minutes must be more than 0 and {MOST:,} at "
                "most"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"--seed {self.seed}: give 0 to 2^63 - 1")
        if self.validations < 1:
            raise ValueError(f"--validations {self.validations}: give 1 or more")
        if self.init is None:
            few = min(self.shape.vocabulary, 1_000)  # a small corpus fills no more
            self.shape.config(few, few)
        if self.precision == "bf16" and self.device.startswith("mps"):
            raise ValueError("--precision bf16: on mps give fp32")


@dataclass
class Training:
    """A training under way."""

    arguments: Arguments
    material: Material
    state: TrainingState
    schedule: Schedule
    began: float
    """When it would have begun, by `time.perf_counter`, had it not been interrupted."""
    started_from: str = ""
    """The name of the run whose weights a new training starts with, if any."""
    best: dict[str, Any] = field(default_factory=dict)
    """Of the best validation so far: its step, its scores, and the weights."""
    made_of: dict[str, Any] = field(default_factory=dict)
    """What must be the same for the training to go on (see `_made_of`)."""
    bar: "tqdm[Any]" = field(init=False)
    """Begins with the steps."""

    @property
    def processes(self) -> Processes:
        return self.state.processes

    @property
    def folder(self) -> Path:
        return self.arguments.out

    @property
    def languages(self) -> tuple[str, str]:
        source, target = self.arguments.direction.split("-")
        return source, target

    def translator(self, model: Transformer) -> Translator:
        """Return what translates with a state of the model."""
        source, target = self.material.source, self.material.target
        name = self.folder.name
        engine = TorchEngine.of(model)
        return Translator(name, engine, source, target, languages=self.languages)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    began = BEGAN if __name__ == "__main__" else time.perf_counter()
    words = sys.argv[1:] if argv is None else list(argv)
    return run(lambda: _main(words, began), "train.py")


def _main(argv: list[str], began: float) -> int:
    arguments = parse_arguments(argv)
    resumed = arguments.resume
    if resumed is not None:
        _check_is_here(resumed)
        if sum(word.startswith("--") for word in argv) > 1:
            raise ValueError("--resume takes no other flag: the run keeps its own")
        saved = _saved_arguments(read_config(resumed), resumed)
        arguments = replace(saved, out=resumed, resume=resumed)
    _check_device(arguments)
    tune_memory()
    with ExitStack() as held:
        output = Expendable(sys.stdout)
        held.callback(output.flush)
        held.enter_context(redirect_stdout(output))
        processes = held.enter_context(joined_processes(arguments.device))
        if not processes.is_first:
            nowhere = held.enter_context(Path(os.devnull).open("w"))
            held.enter_context(redirect_stdout(nowhere))
        begun = is_restart() and _was_begun(arguments.out, argv)
        # The first process knows; another machine might lack the run directory.
        if resumed or processes.from_first(float(begun)):
            training = _go_on(arguments, held, processes)
        else:
            training = _begin(arguments, argv, began, held, processes)
        release_freed_memory()
        with _failed_writes_explained(training.folder):
            return _run(training)


def _check_is_here(run: Path) -> None:
    """Raise `ValueError` where another machine has the run that this process is of."""
    if not started_as().is_first and not (run / "config.json").is_file():
        raise ValueError(
            f"{run} is not on this machine: put the run directory where every machine "
            "sees it"
        )


def _check_device(arguments: Arguments) -> None:
    """Raise `ValueError` unless a training can be on its device."""
    try:
        check_device(arguments.device)
    except ValueError:
        if arguments.resume is None:
            raise
        raise ValueError(
            f"{arguments.resume} was on {arguments.device}, which is not usable here: "
            f"go on where it is, or start from its weights with --init "
            f"{quote(str(arguments.resume))}"
        ) from None


def _run(training: Training) -> int:
    """Run what is left of a training, and return the exit code."""
    first, before = training.processes.is_first, training.state.step
    training.bar = tqdm(total=training.schedule.steps, initial=before, unit="step",
                        dynamic_ncols=True, disable=not first)  # fmt: skip
    with training.bar, stop_request() as stop:
        finished = _train(training, stop)
    if not first:
        return 0 if finished else INTERRUPTED
    if not finished:
        done = f"{training.state.step:,} of {training.schedule.steps:,} steps"
        print(
            f"Stopped after {done}. To go on: python train.py --resume "
            f"{quote(str(training.folder))}"
        )
        return INTERRUPTED
    _finish(training)
    return 0


@contextmanager
def _failed_writes_explained(folder: Path) -> Iterator[None]:
    """Say of a write that failed what is safe and what to do."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if not folder.is_dir():
            raise RunError(f"{folder} was deleted while training: start anew") from None
        raise RunError(
            f"{error.filename or folder}: {error.strerror or error}; the last save is "
            f"whole: mend this, then python train.py --resume {quote(str(folder))}"
        ) from None


def parse_arguments(argv: list[str]) -> Arguments:
    """Return the arguments; --preset gives the defaults of shape and recipe."""
    named = _first_look(argv)
    name: PresetName = named.preset or (
        "tiny" if named.corpus == [STARTER] else "small"
    )
    preset = PRESETS[name]
    default = Arguments(preset=name, shape=preset.shape, recipe=preset.recipe)
    return parse(Arguments, argv, "train.py", default=default)


def _first_look(argv: list[str]) -> Namespace:
    """Return --preset and --corpus alone; the full parser says what is wrong."""
    flags = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    flags.add_argument("--preset", choices=PRESETS)
    flags.add_argument("--corpus", nargs="+", default=[STARTER])
    with suppress(ArgumentError):
        return flags.parse_known_args(argv)[0]
    return Namespace(preset=Arguments.preset, corpus=[])


def named_corpora(config: Mapping[str, Any]) -> list[str]:
    """Return the training corpora that the command in a run's config.json names."""
    argv = config.get("argv")  # an export has none
    if not isinstance(argv, list) or not all(isinstance(word, str) for word in argv):
        return []
    corpora: list[str] = _first_look(argv).corpus
    return corpora


def _was_begun(folder: Path, argv: list[str]) -> bool:
    """Tell whether a run directory has a training of this command in it."""
    found = (folder / "config.json").is_file() and read_config(folder).get("argv")
    return bool(found == argv and not _is_finished(folder))


def _is_finished(folder: Path) -> bool:
    """Tell whether a run has all that a training writes at its end, its page last."""
    there = all((folder / name).is_file() for name in ("README.md", "attention.html"))
    return there and end_is_recorded(folder)


def _begin(
    arguments: Arguments,
    argv: list[str],
    began: float,
    held: ExitStack,
    processes: Processes,
) -> Training:
    """Prepare a new training up to its first step; `held` keeps its directory's lock.

    Of several processes the first makes the run directory.
    """
    started_from = ""
    if arguments.init is not None:
        before = local_folder(arguments.init)
        _check_init(before, arguments.direction, argv)
        is_here = before == arguments.init
        started_from = before.resolve().name if is_here else str(arguments.init)
        arguments = replace(arguments, init=before)
    beside = None
    if processes.is_first:
        check_free(arguments.out, arguments.overwrite, held)
        beside = folder_beside(arguments.out.resolve(), held)
    with processes.in_turn():  # what the first has prepared is there for the others
        material = _prepare(arguments, arguments.init)
    model = _new_model(arguments, material)
    precision, schedule = _plan(arguments, material, model, began, processes)
    torch.manual_seed(arguments.seed)
    state = TrainingState(model, arguments.recipe, precision, processes)
    training = Training(arguments, material, state, schedule, began, started_from)
    if beside is not None:
        training.made_of = _made_of(arguments, material, model.config)
        _make_folder(training, argv, beside)
    return training


def _check_init(before: Path, direction: str, argv: list[str]) -> None:
    """Raise `ValueError` unless a training with these words can start from a run."""
    given = {word.split("=")[0].replace("_", "-") for word in argv}
    for flag in (f"--{one.name}".replace("_", "-") for one in fields(Shape)):
        if flag in given:
            raise ValueError(f"--init keeps that run's shape: leave out {flag}")
    config = read_config(before)
    refuse_export(before, config)
    found = "-".join(config["languages"])
    if found != direction:
        raise ValueError(f"{before} translates {found}: give --direction {found}")


def _make_folder(training: Training, argv: list[str], beside: Path) -> None:
    """Fill a run directory, which gets its name with its first save in it."""
    arguments, material, state = training.arguments, training.material, training.state
    for tokenizer in (material.source, material.target):
        (beside / f"{tokenizer.side}.spm").write_bytes(tokenizer.model)
    _write_words(arguments, material, beside)
    about = _about(training, argv)
    save_config(beside, state.model.config, about)
    for path in beside.iterdir():
        sync(path)
    training.arguments = replace(arguments, out=beside)
    _save(training)
    put_in_place(beside, arguments.out.resolve(), arguments.overwrite)
    training.arguments = arguments


def _write_words(arguments: Arguments, material: Material, folder: Path) -> None:
    """Write which English words were seen, and what the known Japanese ones mean.

    A fine-tuned model has also seen the words of the run that it started from; where
    that has no list, nobody knows which. Where Japanese is the source there is no list:
    it has no spaces, and what stands between two of its marks would be whole clauses of
    the corpus.
    """
    before = arguments.init
    seen = before and before / "source_words.txt"
    if arguments.direction == "en-ja" and (seen is None or seen.is_file()):
        words = set(material.source_words)
        if seen is not None:
            words.update(read_file(seen))
        text = "".join(f"{word}\n" for word in sorted(words)).encode()
        if len(text) <= MOST_BYTES["source_words.txt"]:
            (folder / "source_words.txt").write_bytes(text)
        else:
            print("too many words to list: none will be named as not seen in training")
    if material.starter is not None:
        write_glossary(folder / "glossary.tsv", material.starter.glossary)
    elif before is not None and (before / "glossary.tsv").is_file():
        shutil.copy(before / "glossary.tsv", folder)


def _go_on(arguments: Arguments, held: ExitStack, processes: Processes) -> Training:
    """Return an interrupted training as it was at its last save, and hold its lock.

    Nothing is written before it is clear that the training can go on.
    """
    folder = arguments.out
    _check_is_here(folder)
    config = read_config(folder)
    if processes.is_first:
        held.callback(lock_run(folder).release)
    saved, is_previous = load_state(folder)
    if _is_finished(folder):
        raise ValueError(f"{folder} is finished: nothing is left to do")
    sources = [*arguments.corpus, arguments.dev, arguments.test]
    check_corpora(folder, config, corpus_hashes(sources))
    with processes.in_turn():
        material = _prepare(arguments, folder)
    shape = model_config(config, folder / "config.json")
    made_of = _made_of(arguments, material, shape)
    check_unchanged(folder, saved, made_of)
    torch.manual_seed(arguments.seed)
    model, precision = Transformer(shape), saved["state"]["precision"]
    model.to(arguments.device)
    state = TrainingState(model, arguments.recipe, precision, processes)
    state.load_state_dict(saved["state"])
    began = time.perf_counter() - saved["seconds"]
    schedule = _schedule(arguments, saved["steps"], saved.get("minutes"))
    training = Training(arguments, material, state, schedule, began)
    training.best, training.made_of = saved["best"], made_of
    if processes.is_first:
        if differs := what_differs(config, _versions()):
            print(differs)
        if said := doubt(precision, arguments.device):
            print(said, file=sys.stderr)
        _mend_folder(training, is_previous)
    return training


def _mend_folder(training: Training, is_previous: bool) -> None:
    """Bring a run directory back to what it was at the save that is gone on from."""
    folder = training.folder
    if is_previous:
        drop_latest_state(folder)
        print(f"The last save in {folder} is damaged; going on from the one before it.")
    remove_leftovers(folder)
    cut_metrics(folder, training.state.step)
    if training.best:
        save_weights(folder, training.best["weights"])
    _note_steps(training)


def _saved_arguments(config: dict[str, Any], folder: Path) -> Arguments:
    """Return the arguments that a run was started with.

    config.json might be a stranger's: only flags of a training are parsed, none that
    the library of flags brings.
    """
    argv = config.get("argv")
    known = {f"--{flag.name}" for kind in (Arguments, Shape, Recipe)
             for flag in fields(kind)}  # fmt: skip
    if (
        config["format"] == OLDER
        or not isinstance(argv, list)
        or not all(isinstance(word, str) for word in argv)
        or not all(
            word.split("=")[0].replace("-", "_").replace("__", "--", 1) in known
            for word in argv
            if word.startswith("--") or word == "-h"
        )
    ):
        raise RunError(
            f"{folder} was not started by this version of train.py: start anew"
        )
    return parse_arguments(argv)


def _made_of(
    arguments: Arguments, material: Material, shape: ModelConfig
) -> dict[str, Any]:
    """Return, by name, what must be the same for a training to go on."""
    sides = (material.source, material.target)
    return {
        **asdict(shape),
        **asdict(arguments.recipe),
        **{
            f"{side.side}.spm": hashlib.sha256(side.model).hexdigest() for side in sides
        },
        "seed": arguments.seed,
        "validations": arguments.validations,
        "the training sentences": material.train.sha256(),
        "the dev sentences": material.dev_encoded.sha256(),
    }


def _prepare(arguments: Arguments, tokenizers_from: Path | None) -> Material:
    """Return what to read; tokenizers are trained unless a run has them already."""
    sides: tuple[Side, Side] = ("source", "target")
    tokenizers, max_length = None, arguments.shape.max_length
    if tokenizers_from is not None:
        config = read_config(tokenizers_from)
        shape = model_config(config, tokenizers_from / "config.json")
        max_length = shape.max_length
        sizes = (shape.source_vocabulary, shape.target_vocabulary)
        source, target = (
            Tokenizer.load(tokenizers_from / f"{side}.spm", side, size)
            for side, size in zip(sides, sizes, strict=True)
        )
        tokenizers = (source, target)
    return prepare(
        arguments.corpus,
        arguments.dev,
        arguments.test,
        reverse=arguments.direction == "ja-en",
        vocabulary=arguments.shape.vocabulary,
        max_length=max_length,
        seed=arguments.seed,
        say=print,
        tokenizers=tokenizers,
        columns=arguments.columns,
        bars=sys.stderr.isatty(),
    )


def _new_model(arguments: Arguments, material: Material) -> Transformer:
    """Return the model to start from: random, or --init's."""
    if arguments.init is not None:
        return load_model(arguments.init, arguments.device)
    torch.manual_seed(arguments.seed)
    config = arguments.shape.config(len(material.source), len(material.target))
    return Transformer(config).to(arguments.device)


def _plan(
    arguments: Arguments,
    material: Material,
    model: Transformer,
    began: float,
    processes: Processes,
) -> tuple[Precision, Schedule]:
    """Choose the precision and how many steps there are, by a trial if asked.

    Raises `ValueError` where no time is left for a step.
    """
    candidates = _precisions(arguments, processes)
    minutes, steps = _length(arguments)
    if arguments.epochs is not None:
        batches = plan_batches(material.train, arguments.recipe.batch_tokens)
        steps = max(1, math.ceil(arguments.epochs * len(batches)))
    seconds = {candidates[0]: 0.0}
    if minutes is not None or len(candidates) > 1:
        order = epochs(material.train, arguments.recipe.batch_tokens, arguments.seed)
        batches = [rows for _, rows in islice(order, UNTIMED_STEPS + TRIAL_STEPS)]
        seconds = {
            precision: _trial(arguments, material, model, precision, batches, processes)
            for precision in candidates
        }
    precision = min(candidates, key=lambda candidate: seconds[candidate])
    if minutes is not None:
        left = processes.from_first(seconds_for_steps(minutes, began))
        steps = int(left / seconds[precision])
        if steps < 1:
            raise ValueError(
                f"after preparing, no step fits into {minutes:g} minutes: start again "
                "(most of what was prepared is kept), or give --minutes more"
            )
    print(f"{steps:,} steps in {precision}")
    preset = PRESETS[arguments.preset]
    is_preset = (arguments.shape, arguments.recipe) == (preset.shape, preset.recipe)
    if minutes and steps < preset.few_steps and is_preset and not arguments.init:
        print("So few teach a smaller model more: --preset mini")
    return precision, _schedule(arguments, steps, minutes)


def _length(arguments: Arguments) -> tuple[float | None, int]:
    """Return the minutes and the steps of a training, of which one says how long."""
    if arguments.steps is None and arguments.epochs is None:
        preset = PRESETS[arguments.preset]
        if arguments.minutes is None:
            return preset.minutes, preset.steps or 0
    return arguments.minutes, arguments.steps or 0


def _schedule(arguments: Arguments, steps: int, minutes: float | None) -> Schedule:
    warmup = arguments.recipe.warmup
    return Schedule(steps, arguments.validations, warmup, minutes)


def _plan_again(training: Training, times: list[float]) -> bool:
    """Once in a training of some minutes, fit its steps to what is left of these.

    times is when this process's steps were done; now one more is. Returns whether they
    were planned, which is to be saved: else a training that is resumed would do it
    again.
    """
    schedule, step = training.schedule, training.state.step
    if schedule.minutes is None:
        return False
    times.append(time.perf_counter())
    if not schedule.is_due(step, len(times)):
        return False
    left = seconds_for_steps(schedule.minutes, training.began)
    fit = training.processes.from_first(step + left // typical_step(times))
    before = schedule.steps
    schedule.settle(step, int(fit))
    training.bar.total = schedule.steps
    if training.processes.is_first and schedule.steps != before:
        training.bar.write(f"{schedule.steps:,} steps, by the time that they take")
    return True


def _note_steps(training: Training) -> None:
    """Let config.json name as many steps as are planned."""
    config = read_config(training.folder)
    if config["steps"] != training.schedule.steps:
        write_config(training.folder, config | {"steps": training.schedule.steps})


def _precisions(arguments: Arguments, processes: Processes) -> Sequence[Precision]:
    """Return what to choose from: what was asked for, or all can compute in."""
    if arguments.precision != "auto":
        asked, device = arguments.precision, arguments.device
        if processes.is_first and (said := doubt(asked, device)):
            print(said, file=sys.stderr)
        return [asked]
    return common_precisions(arguments.device, processes)


def _trial(
    arguments: Arguments,
    material: Material,
    model: Transformer,
    precision: Precision,
    batches: Sequence[np.ndarray],
    processes: Processes,
) -> float:
    """Return the seconds of a step, from a few steps of a copy of the model."""
    copied = copy.deepcopy(model)
    state = TrainingState(copied, arguments.recipe, precision, processes)
    for step, rows in enumerate(batches):
        if step == UNTIMED_STEPS:
            began = time.perf_counter()
        _step(state, _batch(arguments, material, rows, step), steps=10**6)
    return processes.from_first(time.perf_counter() - began) / TRIAL_STEPS


def _batch(
    arguments: Arguments, material: Material, rows: np.ndarray, step: int
) -> Batch:
    pairs, places, dropout = material.train, rows, arguments.recipe.subword_dropout
    if dropout:
        seed = np.random.SeedSequence([arguments.seed, step]).generate_state(1)[0]
        pairs, places = material.sample(rows, dropout, int(seed)), np.arange(len(rows))
    return make_batch(pairs, places, padding=PADDING).to(arguments.device)


def _step(state: TrainingState, batch: Batch, steps: int) -> float:
    return state.train_step(batch.source, batch.target_in, batch.target_out, steps)


def _train(training: Training, stop: Stop) -> bool:
    """Run the steps that are left; return False where it was asked to stop before."""
    arguments, state = training.arguments, training.state
    budget, seed = arguments.recipe.batch_tokens, arguments.seed
    order = epochs(training.material.train, budget, seed, first_step=state.step)
    pace, saved, times = Pace(), time.perf_counter(), list[float]()
    while state.step < training.schedule.steps:
        epoch, rows = next(order)
        batch = _batch(arguments, training.material, rows, state.step)
        try:
            loss = _step(state, batch, training.schedule.steps)
        except Diverged as error:
            texts = training.material.pairs[rows[:3]]["source"]
            raise Diverged(
                f"{error}, or look at the sentences of its batch, which begins {texts}"
            ) from None
        planned = _plan_again(training, times)
        asked = training.processes.total(stop.asked) > 0
        if training.processes.is_first:
            pace.tokens += batch.target_tokens
            _report(training, epoch, loss, pace)
            validated = state.step in training.schedule.milestones()
            if validated:
                _validate(training)
            late = time.perf_counter() - saved > SAVE_SECONDS
            if validated or late or asked or planned:
                _save(training)
                if planned:
                    _note_steps(training)
                saved, pace = time.perf_counter(), Pace()
        if asked and state.step < training.schedule.steps:
            return False
    if training.processes.is_first:
        _score_test(training)
        _record(training, event="finished")
    return True


@dataclass
class Pace:
    """How many target tokens were trained on since when."""

    began: float = field(default_factory=time.perf_counter)
    tokens: int = 0


def _report(training: Training, epoch: int, loss: float, pace: Pace) -> None:
    """Move the bar; now and then say and record how it goes."""
    step, steps = training.state.step, training.schedule.steps
    training.bar.update()
    if step % LOG_STEPS and step < steps:
        return
    rate = pace.tokens / (time.perf_counter() - pace.began)
    learning_rate = training.arguments.recipe.learning_rate_at(step, steps)
    _record(training, epoch=epoch, loss=loss, lr=learning_rate,
            target_tokens_per_second=round(rate))  # fmt: skip
    training.bar.set_postfix_str(
        f"loss {loss:.2f}, lr {learning_rate:.1e}, {rate:,.0f} target tokens/s"
    )


def _validate(training: Training) -> None:
    """Score the averaged model on dev, show translations, keep it if it is best."""
    material, model = training.material, training.state.averaged
    device = training.arguments.device
    loss = dev_loss(model, material.dev_encoded, device)
    pairs = material.dev[:DEV_TRANSLATED]
    # An unripe model may never end a sentence; do not wait for it.
    longest = int(material.dev_encoded.target.lengths[:DEV_TRANSLATED].max())
    hypotheses = _translated(training, model, pairs, longest + 10)
    scores = score(hypotheses, [b for _, b in pairs], training.languages[1])
    _record(training, dev_loss=loss, dev_chrf=scores.chrf, dev_bleu=scores.bleu)
    samples = [
        map(printable, (a, ours, b))
        for (a, b), ours in zip(pairs[:SAMPLES], hypotheses, strict=False)
    ]
    training.bar.write(
        f"step {training.state.step:,}: dev loss {loss:.3f}, chrF {scores.chrf:.1f}, "
        f"BLEU {scores.bleu:.1f}"
        + "".join(f"\n  {a}\n    → {ours}\n    = {b}" for a, ours, b in samples)
    )
    if not training.best:
        training.bar.write(f"  ({scores.signatures})")
    if scores.chrf > training.best.get("chrf", -1.0):
        weights = {k: v.clone() for k, v in model.state_dict().items()}
        training.best = {"step": training.state.step, "chrf": scores.chrf,
                         "bleu": scores.bleu, "signatures": scores.signatures,
                         "weights": weights}  # fmt: skip
        save_weights(training.folder, weights)


def _score_test(training: Training) -> None:
    """Score the best model on the test sentences, where there are any."""
    pairs = training.material.test
    if not pairs:
        return
    model = copy.deepcopy(training.state.averaged)
    model.load_state_dict(training.best["weights"])
    hypotheses = _translated(training, model, pairs)
    scores = score(hypotheses, [b for _, b in pairs], training.languages[1])
    _record(training, test_chrf=scores.chrf, test_bleu=scores.bleu)
    training.bar.write(
        f"test: chrF {scores.chrf:.1f}, BLEU {scores.bleu:.1f} ({scores.signatures})"
    )


def _translated(
    training: Training,
    model: Transformer,
    pairs: Sequence[Pair],
    max_steps: int | None = None,
) -> list[str]:
    """Return the greedy translations of the pairs' sources."""
    translator = training.translator(model)
    return translator.best([a for a, _ in pairs], max_steps=max_steps)


@torch.inference_mode()
def dev_loss(model: Transformer, pairs: EncodedPairs, device: str = "cpu") -> float:
    """Return the mean cross-entropy of a target token, in nats, without smoothing."""
    total, tokens = 0.0, 0
    for rows in plan_batches(pairs, tokens=8_192):
        batch = make_batch(pairs, rows, model.config.padding_id).to(device)
        mean = batch_loss(model, batch.source, batch.target_in, batch.target_out)
        total += mean.item() * batch.target_tokens
        tokens += batch.target_tokens
    return total / tokens


def _record(training: Training, **figures: Any) -> None:
    """Append a line to metrics.jsonl."""
    seconds = time.perf_counter() - training.began
    append_metrics(training.folder, training.state.step, seconds, **figures)


def _save(training: Training) -> None:
    sync_metrics(training.folder)  # what was recorded until now must outlast this save
    save_state(
        training.folder,
        {
            "step": training.state.step,
            "steps": training.schedule.steps,
            "minutes": training.schedule.minutes,
            "seconds": time.perf_counter() - training.began,
            "state": training.state.state_dict(),
            "best": training.best,
            "made_of": training.made_of,
        },
    )


def _about(training: Training, argv: list[str]) -> dict[str, Any]:
    """Return what config.json says of how a run was made.

    A fine-tuned model has learned from the corpora of the run before, too; they come
    last.
    """
    arguments = training.arguments
    own = [split_columns(name)[0] for name in arguments.corpus]
    before = read_config(arguments.init)["learned_from"] if arguments.init else []
    return {
        "languages": arguments.direction.split("-"),
        "command": join(["python", "train.py", *argv]),
        "argv": argv,
        "seed": arguments.seed,
        "steps": training.schedule.steps,
        "precision": training.state.precision,
        "recipe": asdict(arguments.recipe),
        "threads": torch.get_num_threads(),
        "versions": _versions(),
        "corpora": training.material.hashes,
        "learned_from": [*own, *before],
        "started_from": training.started_from,
    }


def _versions() -> dict[str, str]:
    """Return the versions of the packages that a training depends on."""
    packages = ("torch", "numpy", "sentencepiece", "datasets", "sacrebleu",
                "safetensors")  # fmt: skip
    return {name: version(name) for name in packages}


def _finish(training: Training) -> None:
    """Score the best model, describe it, and say how to use it."""
    translator = Translator.load(training.folder, training.arguments.device)
    starter = training.material.starter
    if starter is not None and training.arguments.direction == "en-ja":
        fine_tuned = training.arguments.init is not None
        print(f"\n{starter_report(translator, starter, fine_tuned)}")
        article = ARTICLE["en"]
        print(f"{article} → {translator.best([article])[0]}\n")
    _write_card(training)
    page = _write_page(training, translator)  # what tells that a run is finished
    minutes, seconds = divmod(round(time.perf_counter() - training.began), 60)
    print(f"Done in {minutes} min {seconds} s: {training.folder}")
    print(f"Its attention, to look at in a browser: {page}")
    folder = quote(str(training.folder))
    named = "" if training.folder == Arguments.out else f"--model {folder} "
    print(f'Try it: python translate.py {named}"{ARTICLE[training.languages[0]]}"')


def _write_page(training: Training, translator: Translator) -> Path:
    """Write the page of the article's sentence into the run directory."""
    sentence = ARTICLE[training.languages[0]]
    [[best]] = translator.translate([sentence])
    trace = translator.trace(sentence, best.hypothesis.ids, best.hypothesis.complete)
    known = training.material.starter is not None and best.text == ARTICLE["ja"]
    page = translator.page([trace], gold=ARTICLE_GOLD if known else None)
    path = training.folder / "attention.html"
    write_atomically(path, lambda to: to.write_text(page, "utf-8"))
    return path


def _write_card(training: Training) -> None:
    """Write the run's README.md: what it is, what it learned from, how good it is."""
    figures = Figures(
        pairs=len(training.material.pairs),
        parameters=sum(p.numel() for p in training.state.model.parameters()),
        dev_sentences=min(len(training.material.dev), DEV_TRANSLATED),
        step=training.best["step"],
        chrf=training.best["chrf"],
        bleu=training.best["bleu"],
        signatures=training.best["signatures"],
    )
    # From this run's own file: by now the run that it started from may be gone.
    config, init = read_config(training.folder), training.arguments.init
    if init is not None and not config["started_from"]:
        config["started_from"] = str(init)
    corpora = training.arguments.corpus
    sentence = ARTICLE[training.languages[0]]
    text = run_card(training.folder, config, corpora, figures, sentence)
    path = training.folder / "README.md"
    write_atomically(path, lambda to: to.write_text(text, "utf-8"))


if __name__ == "__main__":
    sys.exit(main())
