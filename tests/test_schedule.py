"""How many steps a training takes, by hand."""

import pytest

from model.schedule import Schedule, seconds_for_steps, typical_step


def test_validations_are_at_equal_distances_and_at_the_end() -> None:
    assert Schedule(40, validations=4, warmup=9).milestones() == {10, 20, 30, 40}
    assert Schedule(5, validations=2, warmup=1).milestones() == {2, 5}
    assert Schedule(2, validations=8, warmup=0).milestones() == {1, 2}


@pytest.mark.parametrize(("minutes", "reserved"), [(1, 6), (10, 60), (60, 300)])
def test_minutes_keep_some_seconds_for_all_but_steps(
    minutes: int, reserved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8% and 12 seconds, but a tenth at most; and what has passed already."""
    monkeypatch.setattr("model.schedule.time.perf_counter", lambda: 130.0)
    left = seconds_for_steps(minutes, began=100.0)
    assert left == pytest.approx(60 * minutes - reserved - 30)


def test_a_pause_is_no_slow_step() -> None:
    done = [0, 5, 6, 7, 107, 108]  # two steps with kernels to make; then a pause
    assert typical_step(done) == 1


@pytest.mark.parametrize(
    ("steps", "due"),
    [(1_000, 50), (400, 25), (100, 10)],  # the warm-up; half of 50; ten timed steps
)
def test_when_steps_are_planned_once_more(steps: int, due: int) -> None:
    schedule = Schedule(steps, validations=8, warmup=50, minutes=1.0)
    assert [step for step in range(200) if schedule.is_due(step, step)][0] == due


@pytest.mark.parametrize(
    ("planned", "step", "fit", "settled"),
    [
        (1_000, 50, 1_300, 1_300),
        (1_000, 50, 700, 700),
        (1_000, 50, 149, 150),  # with fewer the warm-up would have been another
        (1_000, 51, 1_300, 1_000),  # the learning rate falls already
        (149, 5, 1_300, 149),  # its warm-up is a third of it
        (160, 20, 1_300, 160),  # the first validation is past
    ],
)
def test_how_many_fit(planned: int, step: int, fit: int, settled: int) -> None:
    schedule = Schedule(planned, validations=8, warmup=50, minutes=1.0)
    schedule.settle(step, fit)
    assert (schedule.steps, schedule.minutes) == (settled, None)
