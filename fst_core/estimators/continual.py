"""Continual learning: the accuracy matrix's scores, and how far old tasks fall in between."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RECOVERED = 1e-9
"""Accuracy by which a recovery may miss the level before the switch (rounding)."""


@dataclass(frozen=True, slots=True)
class ContinualScores:
    """Scores after the last complete stage, over the tasks learned by then; None if undefined."""

    average_accuracy: float | None
    """Mean accuracy over the tasks learned; higher is better."""
    backward_transfer: float | None
    """Mean change of an old task since the end of its own stage; negative is forgetting."""
    forward_transfer: float | None
    """Mean gain of a task before its own stage over the untrained model; higher is better."""
    forgetting: float | None
    """Mean fall of an old task from its best earlier stage; lower is better."""
    stages: int
    """Complete stages, k."""
    tasks: int
    """Tasks of the sequence, T."""
    reason: str
    """Which scores are undefined and why; empty if all are defined over all T tasks."""


@dataclass(frozen=True, slots=True)
class StabilityGap:
    """An old task's fall after a switch to the next task; None where undefined."""

    before: float | None
    """Accuracy at the last evaluation at or before the switch."""
    minimum: float | None
    """Lowest accuracy after the switch, up to `until`."""
    step_of_minimum: float | None
    gap: float | None
    """before - minimum; positive is a fall, negative if the task only got better."""
    recovered_at: float | None
    """First step, from the minimum on, at which accuracy is back at `before`; None if never."""
    reason: str = ""
    """Why it is undefined; empty where it is defined."""


def continual_scores(R: Sequence[Sequence[float]]) -> ContinualScores:
    """ACC, BWT and FWT of Lopez-Paz & Ranzato 2017 (GEM), forgetting of Chaudhry et al. 2018.

    With R[i][j] the accuracy on task j after stage i (row 0: before training), after stage k:
      ACC = 1/k sum_{j=1..k} R[k][j]
      BWT = 1/(k-1) sum_{j=1..k-1} (R[k][j] - R[j][j])
      FWT = 1/(k-1) sum_{j=2..k} (R[j-1][j] - R[0][j])
      forgetting = 1/(k-1) sum_{j=1..k-1} (max_{l=1..k-1} R[l][j] - R[k][j])
    GEM's baseline of FWT is a random initialisation; here it is the base model. Forgetting may be
    negative, and is never below -BWT.

    Args:
        R: k + 1 rows of T accuracies, k <= T: an unfinished run has fewer rows. NaN: not measured.
    Returns:
        The scores after stage k; None where a cell that is needed is missing, and for all but ACC
        after a single stage.
    Raises:
        ValueError: if R is not a matrix, or has more than T + 1 rows.
    """
    cells = np.array(R, dtype=float)
    if cells.size == 0:
        return ContinualScores(None, None, None, None, 0, 0, "No stage was measured.")
    if cells.ndim != 2 or len(cells) > cells.shape[1] + 1:
        raise ValueError(f"R is (stages + 1) x tasks, not of shape {cells.shape}")
    k, tasks = len(cells) - 1, cells.shape[1]
    learned = cells[1:, :k]
    scores = (
        _mean(learned[k - 1 : k].ravel()),
        _mean(learned[k - 1 : k, : k - 1].ravel() - np.diag(learned)[: k - 1]),
        _mean(np.diag(cells[1:k, 1:k]) - cells[0, 1:k]),
        _mean(_falls(learned)),
    )
    return ContinualScores(*scores, stages=k, tasks=tasks, reason=_incomplete(scores, k, tasks))


def _falls(learned: np.ndarray) -> np.ndarray:
    k = len(learned)
    if k < 2:
        return np.empty(0)
    return learned[: k - 1, : k - 1].max(axis=0) - learned[k - 1, : k - 1]


def _mean(values: np.ndarray) -> float | None:
    return float(values.mean()) if values.size and np.isfinite(values).all() else None


def _incomplete(scores: Sequence[float | None], stages: int, tasks: int) -> str:
    parts = []
    if stages < tasks:
        parts.append(f"{stages} of {tasks} stages are complete.")
    if stages == 1:
        parts.append("Transfer and forgetting need two stages.")
    elif stages and None in scores:
        parts.append("An accuracy that a score needs was not measured.")
    return " ".join(parts)


def stability_gap(
    steps: Sequence[float], accuracy: Sequence[float], switch_step: float, until: float
) -> StabilityGap:
    """How far one task falls after training switches to another, and whether it comes back.

    De Lange, van de Ven & Tuytelaars 2023 (arXiv 2205.13452). Their minimum is over every training
    step; here it is over the evaluations, so the true gap is at least as wide.

    Args:
        steps: of the evaluations, in any order.
        accuracy: of the task, at the evaluations.
        switch_step: last step of the old stage.
        until: last step looked at: the end of the next stage, or of the run.
    Returns:
        The gap; undefined, with its reason, where there is no evaluation on one side of the switch
        or an accuracy is not finite.
    Raises:
        ValueError: if steps and accuracy differ in length.
    """
    points = sorted(
        (float(s), float(a)) for s, a in zip(steps, accuracy, strict=True) if s <= until
    )
    old = [value for step, value in points if step <= switch_step]
    new = [(step, value) for step, value in points if step > switch_step]
    if not old or not new:
        side = "before" if not old else "after"
        return _undefined(f"The task was not evaluated {side} the switch at step {switch_step:g}.")
    if not all(math.isfinite(value) for value in [old[-1], *(value for _, value in new)]):
        return _undefined(f"An accuracy around the switch at step {switch_step:g} is missing.")
    before = old[-1]
    lowest, minimum = min(new, key=lambda point: point[1])
    back = (step for step, value in new if step >= lowest and value >= before - RECOVERED)
    return StabilityGap(before, minimum, lowest, before - minimum, next(back, None))


def _undefined(reason: str) -> StabilityGap:
    return StabilityGap(None, None, None, None, None, reason)


def average_minimum_accuracy(minima: Sequence[float]) -> float | None:
    """min-ACC of arXiv 2205.13452: mean over old tasks of their lowest accuracy since learned.

    Args:
        minima: per old task, its lowest accuracy at any evaluation after its own stage.
    Returns:
        None where there is no old task or a minimum is not finite.
    """
    return _mean(np.array(minima, dtype=float))


def worst_case_accuracy(
    current_accuracy: float, minima: Sequence[float], task_number: int
) -> float | None:
    """WC-ACC of arXiv 2205.13452: current accuracy and min-ACC, each task with equal weight.

    WC-ACC_k = 1/k accuracy(task k) + (1 - 1/k) min-ACC_k; a lower bound of average accuracy.

    Args:
        current_accuracy: of task k, now.
        minima: of the k - 1 old tasks, as in `average_minimum_accuracy`.
        task_number: k, from 1.
    Returns:
        None where a value is not finite.
    Raises:
        ValueError: if there are not k - 1 minima.
    """
    if task_number < 1 or len(minima) != task_number - 1:
        raise ValueError(f"task {task_number} has {task_number - 1} old tasks, not {len(minima)}")
    return _mean(np.array([current_accuracy, *minima], dtype=float))


def normalised_by_peak(by_arm: Mapping[str, Sequence[float]]) -> dict[str, list[float | None]]:
    """Values divided by the highest one over all arms and steps (the paper's continual figure).

    Args:
        by_arm: non-negative values, e.g. rewards of one stage, by arm; NaN is passed over.
    Returns:
        The same shape, 1 at the peak; None for a value that is not finite, and everywhere where the
        peak is not above 0.
    """
    finite = [v for values in by_arm.values() for v in values if math.isfinite(v)]
    peak = max(finite, default=0.0)
    return {
        arm: [v / peak if peak > 0 and math.isfinite(v) else None for v in values]
        for arm, values in by_arm.items()
    }
