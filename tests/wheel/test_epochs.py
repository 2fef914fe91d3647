"""Epochs against a plain list of one epoch an entry."""

from __future__ import annotations

import random

import pytest

from slotwheel.wheel.journal.epochs import Epochs


def made(base: int, *epochs: int) -> Epochs:
    """A base, then one entry for each further epoch."""
    result = Epochs(base, epochs[0])
    for index, epoch in enumerate(epochs[1:], base + 1):
        result.append(index, epoch)
    return result


def test_new() -> None:
    epochs = Epochs()
    assert (epochs.base_index, epochs.last_index, epochs.last_epoch) == (0, 0, 0)
    assert epochs.epoch_at(0) == 0
    assert epochs.epoch_at(1) is None
    assert epochs.epoch_at(-1) is None


def test_truncate_within_a_run_and_to_the_base() -> None:
    epochs = made(10, 3, 3, 5, 5, 8)
    epochs.truncate_after(12)
    assert epochs == made(10, 3, 3, 5)
    epochs.append(13, 9)
    assert epochs.last_epoch == 9
    epochs.truncate_after(10)
    assert epochs == Epochs(10, 3)
    with pytest.raises(AssertionError):
        epochs.truncate_after(9)


def test_drop_below_keeps_the_epoch_of_the_base() -> None:
    epochs = made(0, 0, 1, 1, 2, 2)
    epochs.drop_below(3)
    assert (epochs.base_index, epochs.base_epoch) == (2, 1)
    assert epochs.epoch_at(1) is None
    epochs.drop_below(1)  # already gone
    epochs.drop_below(5)
    assert epochs == Epochs(4, 2)
    with pytest.raises(AssertionError):
        epochs.drop_below(6)


@pytest.mark.parametrize(("index", "epoch"), [(5, 9), (3, 9), (4, 1)])
def test_append_refuses_a_gap_and_a_falling_epoch(index: int, epoch: int) -> None:
    epochs = made(0, 0, 1, 2, 2)
    with pytest.raises(AssertionError):
        epochs.append(index, epoch)


@pytest.mark.parametrize("seed", range(20))
def test_against_a_list(seed: int) -> None:
    rng = random.Random(seed)
    base, model = 0, [0]
    epochs = Epochs()
    for _ in range(300):
        last = base + len(model) - 1
        kind = rng.random()
        if kind < 0.6:
            epoch = model[-1] + (rng.random() < 0.2)
            epochs.append(last + 1, epoch)
            model.append(epoch)
        elif kind < 0.7:
            count = rng.randint(1, 5)
            epoch = model[-1] + rng.randint(0, 2)
            epochs.extend(last + 1, last + count, epoch)
            model += [epoch] * count
        elif kind < 0.85:
            cut = rng.randint(base, last)
            epochs.truncate_after(cut)
            del model[cut - base + 1 :]
        else:
            first = rng.randint(base + 1, last + 1)
            epochs.drop_below(first)
            del model[: first - 1 - base]
            base = first - 1
        last = base + len(model) - 1
        assert (epochs.base_index, epochs.base_epoch) == (base, model[0])
        assert (epochs.last_index, epochs.last_epoch) == (last, model[-1])
        known = [epochs.epoch_at(index) for index in range(base - 1, last + 2)]
        assert known == [None, *model, None]
        for epoch in range(model[-1] + 2):
            at_most = [base + i for i, e in enumerate(model) if e <= epoch]
            assert epochs.last_of_at_most(epoch) == (at_most[-1] if at_most else base)


def test_a_copy_is_its_own() -> None:
    epochs = made(0, 0, 1, 2)
    other = epochs.copy()
    assert other == epochs
    other.append(3, 2)
    epochs.truncate_after(1)
    assert (other.last_index, epochs.last_index) == (3, 1)
    assert other != epochs
