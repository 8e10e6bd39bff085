"""How many steps a training takes, where it is given minutes, and when it validates."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

UNTIMED_STEPS, TRIAL_STEPS = 2, 8
"""Of a trial: the first steps pay for buffers and kernels."""
RESERVED, MOST_RESERVED = (0.08, 12), 0.1
"""For saves, validations and the end: a share of the minutes and seconds besides, but
no larger share than the last."""


@dataclass
class Schedule:
    """The steps of a training."""

    steps: int
    validations: int
    """How many there are, at equal distances; the last one at the end."""
    warmup: int
    """Steps over which the learning rate rises."""
    minutes: float | None = None
    """What the steps are to fit into, until their number is settled (`settle`)."""

    def milestones(self) -> set[int]:
        """Return the steps, counted from 1, after which the training is validated."""
        parts = range(1, self.validations + 1)
        return {max(1, round(self.steps * part / self.validations)) for part in parts}

    def is_due(self, step: int, timed: int) -> bool:
        """Tell whether it is time to `settle`: after a step, where so many were timed.

        That is at the end of the warm-up, or half way to the first validation, once
        as many were timed as in a trial.
        """
        soon = min(self.warmup, min(self.milestones()) // 2)
        enough = timed >= UNTIMED_STEPS + TRIAL_STEPS
        return step >= soon and enough

    def settle(self, step: int, fit: int) -> None:
        """Once, after a step, take the number of steps that fit into the minutes.

        Until the warm-up ends the learning rate is the same for any number of steps
        whose third is no shorter than it, so that each step stays the one that as many
        --steps make; after that, and where they are fewer, their number stays. (Where
        far fewer fit than were planned, an early validation is left out.)
        """
        self.minutes = None
        fewest = 3 * self.warmup
        is_early = step <= self.warmup and step < min(self.milestones())
        if is_early and self.steps >= fewest:
            self.steps = max(fit, fewest)


def typical_step(times: Sequence[float]) -> float:
    """Return the seconds of a step, from when steps were done; a pause tells nothing.

    The first ones pay for buffers and kernels.
    """
    return float(np.median(np.diff(times[UNTIMED_STEPS - 1 :])))


def seconds_for_steps(minutes: float, began: float) -> float:
    """Return how many of the minutes' seconds are left for steps.

    began is when they began, by `time.perf_counter`.
    """
    share, seconds_besides = RESERVED
    whole = minutes * 60
    reserved = min(share * whole + seconds_besides, MOST_RESERVED * whole)
    return whole - reserved - (time.perf_counter() - began)
