r"""Speed and staleness of further rules in closed form, where there is one.

| strategy | time of an update | mean staleness |
|---|---|---|
| ``Buffered``, ``StalenessAware`` | $B / \sum_i (E X_i + 2c)^{-1}$ | $(P-1)/B$ |
| ``DelayAdaptive``, ``Rescaled``, ``NewestOfEach`` | as ``Asynchronous`` | $P-1$, at the first use |
| ``BoundedStaleness`` | $(\max_i x_i + 2c)/P$ for constant durations $x_i$ | simulation |
| ``Ringmaster`` | $E X_{(1)} + 2c$ for a threshold of 1, with ``stop``; else simulation | 0; simulation |
| ``QuorumGrace`` | $E X_{(P)} + 2c$ for a quorum of all; else simulation | 0; simulation |
| ``Replicated`` | $\max_k \min_{i \in G_k} x_i + 2c$ for constant durations | 0 |
| ``Anytime`` | the ``seconds`` for constant durations, some longer, if a recall is answered at once ($c = 0$) | 0 |
| ``Rennala``, ``Malenia`` | simulation: late gradients run into the next round | 0 |

*Why the staleness of a buffer is $(P-1)/B$*, for any durations: number the gradients by arrival. Worker $i$ hands in
the ones with numbers $n_1 < n_2 < \dots$, and downloads version $\lfloor n_k / B \rfloor$ after the $k$-th. The next
is used in the update from version $\lfloor (n_{k+1} - 1) / B \rfloor$. Summed over $k$, the staleness is the number of
updates less those that the worker's own gradients complete. Summed over workers, it is $(P - 1) U$ for $U$ updates of
$B$ gradients each.
"""

from paceline.core.coordinator import Strategy
from paceline.delays import Constant
from paceline.fleets.simulated.fleet import SimulatedFleet
from paceline.strategies.anytime import Anytime
from paceline.strategies.asynchronous import Asynchronous
from paceline.strategies.bounded_staleness import BoundedStaleness
from paceline.strategies.buffered import Buffered, StalenessAware
from paceline.strategies.delay_adaptive import DelayAdaptive
from paceline.strategies.newest_of_each import NewestOfEach
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.rennala import Malenia, Rennala
from paceline.strategies.replicated import Replicated
from paceline.strategies.rescaled import Rescaled

ONE_BY_ONE = (Asynchronous, DelayAdaptive, Rescaled, NewestOfEach)  # each arrival is an update
BUFFERS = (Buffered, StalenessAware)
NEVER_STALE = (Anytime, Rennala, Malenia, Replicated)
NOTHING_LOST = (*ONE_BY_ONE, *BUFFERS, BoundedStaleness, QuorumGrace)
WEIGHED = (DelayAdaptive, Rescaled, NewestOfEach, StalenessAware)  # their weights are not 1 for each age


def gradients_an_update(strategy: Strategy) -> int:
    """How many arrivals make an update, of rules under which nobody waits."""
    return strategy.size if isinstance(strategy, Buffered) else 1


def buffer_staleness(strategy: Strategy, fleet: SimulatedFleet) -> float | None:
    """The mean staleness of a buffer; None for other rules, and where gradients arrive together by decree."""
    if type(strategy) not in BUFFERS or fleet.ties == "batch":
        return None
    return (fleet.workers - 1) / gradients_an_update(strategy)


def constant_seconds(strategy: Strategy, fleet: SimulatedFleet, transfer: float) -> float | None:
    """What an update takes where all durations are constant; None where no form is known."""
    durations = [delay.value for delay in fleet.worker_delays if isinstance(delay, Constant)]
    if len(durations) < fleet.workers or fleet.server_seconds:
        return None
    if type(strategy) is BoundedStaleness:
        return (max(durations) + 2 * transfer) / fleet.workers  # the slowest never waits, and all keep to its pace
    if type(strategy) is Replicated:
        return max(min(durations[worker] for worker in group) for group in strategy.groups) + 2 * transfer
    if type(strategy) is Anytime and not transfer and fleet.recall != "block":
        return min(strategy.seconds, max(durations))
    return None
