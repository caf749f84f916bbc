"""The formulas of data fine-pruning as printed and corrected, against the schedule of the library."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.pruning.schedule import Schedule
from reproductions.fine_pruning.formulas import (
    IN_MINUTES,
    TABLE_1,
    TABLE_2,
    mean_batches_corrected,
    mean_batches_formula_5,
    pruned_epochs_corrected,
    pruned_epochs_formula_3,
    pruned_epochs_formula_4,
    pruned_epochs_formula_4_clamped,
    pruned_seconds,
    pruned_seconds_corrected,
    regular_seconds,
    saved_seconds,
)


@pytest.mark.parametrize(
    ("n", "w", "a", "r", "c", "formula_3", "formula_4", "clamped", "corrected"),
    [(200, 20, 10, 5, 4, 80, 72, 80, 80), (200, 60, 30, 5, 3, 54, 48, 54, 54)],
)
def test_known_numbers_of_pruned_epochs(  # noqa: PLR0917 - a table
    n: int, w: int, a: int, r: int, c: int, formula_3: int, formula_4: int, clamped: int, corrected: int
) -> None:
    assert pruned_epochs_formula_3(n, w, a, r, c) == formula_3
    assert pruned_epochs_formula_4(n, w, a, r, c) == formula_4
    assert pruned_epochs_formula_4_clamped(n, w, a, r, c) == clamped
    assert pruned_epochs_corrected(n, w, a, r, c) == corrected


@settings(max_examples=300)
@given(st.integers(1, 12), st.integers(1, 6), st.data(), st.integers(1, 5))
def test_formula_3_counts_algorithm_2_where_windows_and_blocks_fit(
    windows: int, r: int, data: st.DataObject, k: int
) -> None:
    """I6: for w | n, r | w - a, a >= 1, no attenuation."""
    a, c = data.draw(st.integers(1, 8)), data.draw(st.integers(0, r))
    w = a + k * r
    n = windows * w
    schedule = Schedule(a, r, c, w)
    counted = sum(schedule.pruned(epoch) for epoch in range(1, n + 1))
    assert counted == pruned_epochs_formula_3(n, w, a, r, c)


@settings(max_examples=300)
@given(st.integers(1, 80), st.integers(1, 20), st.integers(1, 8), st.data())
def test_the_corrected_formula_is_exact_for_blocks_from_the_start_of_each_window(
    n: int, w: int, r: int, data: st.DataObject
) -> None:
    """I7: epochs 0 to n - 1."""
    a, c = data.draw(st.integers(0, w)), data.draw(st.integers(0, r))
    direct = sum(1 for e in range(n) if e % w >= a and (e % w - a) % r < c)
    assert pruned_epochs_corrected(n, w, a, r, c) == direct


def test_formulas_2_to_7() -> None:
    """N = 200, 391 batches of which 274 remain in 100 pruned epochs."""
    regular = regular_seconds(200, 0.01, 391)
    mean = mean_batches_corrected(200, 100, 391, 274)
    assert regular == pytest.approx(782)
    assert mean == 332.5
    assert mean_batches_formula_5(200, 100, 0.01) == pytest.approx(0.01)  # as printed: always the seconds of a batch
    pruned = pruned_seconds(200, 100, 0.01, mean, 0.02)
    assert pruned == pytest.approx(665 + 2)
    assert pruned_seconds_corrected(200, 0.01, mean, 0.02) == pytest.approx(665 + 4)
    assert saved_seconds(regular, pruned) == pytest.approx(115)


def test_table_1_is_recomputed_with_the_overhead_taken_off() -> None:
    """To the printed hundredth where seconds are printed; where minutes are, to a minute in the shortest of them."""
    for name, column in TABLE_1.items():
        tolerance = 0.4 if name in IN_MINUTES else 0.0051
        assert column.recomputed == pytest.approx(column.speedup, abs=tolerance), name
    mean = sum(column.speedup for column in TABLE_1.values()) / len(TABLE_1)
    assert mean == pytest.approx(11.635)  # "around 14.29 %" is the best of ten
    assert TABLE_1.keys() == TABLE_2.keys()
    assert max(regular - pruned for regular, pruned in TABLE_2.values()) == pytest.approx(0.43)
