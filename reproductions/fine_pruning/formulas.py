r"""The paper's formulas 2 to 7, as printed and corrected. Standard library only.

Symbols: $n$ epochs, $w$ window, $a$ StartingPoint, $r$ PruningBlock, $c$ PruningCount, $b$ mini-batches of an epoch,
$T$ seconds of one, $t_0$ overhead of an epoch. What is really pruned is ``Schedule``: the formulas count it, some
of them wrongly, and all of them without attenuation.

*Data Fine-Pruning*, Sec. 4.4 and Table 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass


def regular_seconds(n: int, batch_seconds: float, b: float) -> float:
    r"""Formula 2: $t_\text{regular} = n\,T\,b$."""
    return n * batch_seconds * b


def pruned_epochs_formula_3(n: int, w: int, a: int, r: int, c: int) -> int:
    r"""Formula 3, for $w \mid n$: $(\lfloor\frac{w-a}{r}\rfloor c + (w-a) \bmod r) \lfloor\frac{n}{w}\rfloor$.

    It counts the whole remainder of the last block as pruned, where the algorithm prunes at most $c$ of it. The two
    agree if $r \mid w - a$ and $w \mid n$, for $a \ge 1$ and without attenuation.
    """
    return ((w - a) // r * c + (w - a) % r) * (n // w)


def pruned_epochs_formula_4(n: int, w: int, a: int, r: int, c: int) -> int:
    r"""Formula 4 as printed: formula 3 $+ \lfloor\frac{L}{r}\rfloor c + L \bmod r$, where $L = n \bmod w - a$.

    Where the last window ends before its StartingPoint, $L$ and the whole term are negative.
    """
    rest = n % w - a
    return pruned_epochs_formula_3(n, w, a, r, c) + rest // r * c + rest % r


def pruned_epochs_formula_4_clamped(n: int, w: int, a: int, r: int, c: int) -> int:
    """Formula 4 with $L$ at least 0."""
    rest = max(0, n % w - a)
    return pruned_epochs_formula_3(n, w, a, r, c) + rest // r * c + rest % r


def pruned_epochs_corrected(n: int, w: int, a: int, r: int, c: int) -> int:
    r"""Both formulas corrected: $g(w-a)\lfloor\frac{n}{w}\rfloor + g(n \bmod w - a)$.

    $g(L) = \lfloor\frac{L}{r}\rfloor c + \min(L \bmod r, c)$ for $L > 0$, else 0. Exact for epochs $0, \dots, n-1$
    whose blocks are counted from the StartingPoint of each window.
    """

    def in_stretch(length: int) -> int:
        return length // r * c + min(length % r, c) if length > 0 else 0

    return in_stretch(w - a) * (n // w) + in_stretch(n % w - a)


def mean_batches_formula_5(n: int, n_prune: int, batch_seconds: float) -> float:
    r"""Formula 5 as printed: $\frac1n\left(\sum_{i=1}^{n_p} T + \sum_{i=1}^{n-n_p} T\right)$, which is always $T$.

    It is called a number of batches, but is a time, and does not depend on what is pruned.
    """
    return (n_prune * batch_seconds + (n - n_prune) * batch_seconds) / n


def mean_batches_corrected(n: int, n_prune: int, b: float, b_pruned: float) -> float:
    r"""Formula 5 corrected: $b_\text{prune} = \frac1n\left(n_p\,b_p + (n - n_p)\,b\right)$."""
    return (n_prune * b_pruned + (n - n_prune) * b) / n


def pruned_seconds(n: int, n_prune: int, batch_seconds: float, b_prune: float, overhead: float) -> float:
    r"""Formula 6: $t_\text{prune} = n\,T\,b_\text{prune} + n_p\,t_0$. Only pruned epochs are charged the overhead."""
    return n * batch_seconds * b_prune + n_prune * overhead


def pruned_seconds_corrected(n: int, batch_seconds: float, b_prune: float, overhead: float) -> float:
    r"""Formula 6 corrected: $n\,T\,b_\text{prune} + n\,t_0$, for losses are observed in every epoch."""
    return n * batch_seconds * b_prune + n * overhead


def saved_seconds(regular: float, pruned: float) -> float:
    r"""Formula 7: $t_\text{save} = t_\text{regular} - t_\text{prune}$."""
    return regular - pruned


@dataclass(frozen=True)
class Timed:
    """A column of Table 1, in seconds; the speedup in percent, as printed."""

    regular: float
    pruned: float
    overhead: float
    speedup: float

    @property
    def recomputed(self) -> float:
        """(Regular - Pruned - Overhead) / Regular: what the printed speedups turn out to be."""
        return 100 * saved_seconds(self.regular, self.pruned + self.overhead) / self.regular


def _minutes(hours: int, minutes: int) -> float:
    return 60.0 * (60 * hours + minutes)


TABLE_1: Mapping[str, Timed] = {
    "LeNet": Timed(1220, 1071.73, 4.27, 11.80),
    "VggNet-13": Timed(2028, 1873.67, 4.33, 7.40),
    "VggNet-16": Timed(2554, 2356.74, 4.26, 7.56),
    "VggNet-19": Timed(3110, 2867.7, 4.30, 7.65),
    "ResNet-18": Timed(1277, 1109.92, 4.08, 12.76),
    "ResNet-34": Timed(2047, 1767.79, 4.21, 13.43),
    "ResNet-50": Timed(3931, 3379.82, 4.18, 13.92),
    "WRN-10": Timed(_minutes(3, 24), _minutes(2, 56), 4.12, 13.73),
    "WRN-16": Timed(_minutes(5, 8), _minutes(4, 26), 4.25, 13.81),
    "WRN-22": Timed(_minutes(6, 53), _minutes(5, 54), 4.32, 14.29),
}
IN_MINUTES = ("WRN-10", "WRN-16", "WRN-22")  # printed to the minute: their recomputed speedups are rough

TABLE_2: Mapping[str, tuple[float, float]] = {  # accuracy in percent, regular and pruned
    "LeNet": (75.15, 74.72),
    "VggNet-13": (93.92, 93.56),
    "VggNet-16": (93.79, 93.44),
    "VggNet-19": (93.35, 93.30),
    "ResNet-18": (91.25, 91.16),
    "ResNet-34": (92.86, 92.85),
    "ResNet-50": (93.75, 93.46),
    "WRN-10": (92.13, 91.78),
    "WRN-16": (94.22, 94.20),
    "WRN-22": (95.08, 94.71),
}
