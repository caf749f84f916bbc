"""Rules of the field that are settings of ``ModelAveraging``, by their names."""

from typing import Literal

from paceline.core.coordinator import Strategy
from paceline.strategies.aggregation import OuterSGD
from paceline.strategies.buffered import Buffered
from paceline.strategies.model_averaging import ModelAveraging
from paceline.strategies.quorum_grace import QuorumGrace
from paceline.strategies.synchronous import Synchronous


def DiLoCo(  # noqa: N802 - a named choice
    every: int, outer_lr: float = 0.7, outer_momentum: float = 0.9, *, waits: Strategy = Synchronous(),
    weights: Literal["waits", "tokens", "age"] = "waits", steps: int | None = None, warm_up: int = 0,
    by_speed: bool = False,
) -> ModelAveraging:  # fmt: skip
    r"""Let workers train apart for many steps, and the server step along what they moved, with Nesterov's momentum.

    $$\Delta = \frac1K \sum_{k=1}^K (w - w_k), \qquad b \leftarrow \mu b + \Delta, \qquad
    w \leftarrow w - \eta\,(\Delta + \mu b),$$

    after ``every`` ($H$) inner steps of each of $K$ workers, with ``outer_lr`` ($\eta$) and ``outer_momentum`` ($\mu$).
    The paper's inner optimizer is AdamW, whose state stays with each worker, and $H = 500$. It wins where exchanging
    models is what takes time, and loses where $H$ is so long that the workers' models drift apart. With
    ``waits=Asynchronous()`` momentum along stale differences can swing: choose less of it; ``by_speed`` lets slow
    workers make fewer steps, so that nothing is as stale. The server holds two more copies of the model than under
    averaging: the momentum, and $\Delta$ during a step.

    Douillard et al., *DiLoCo: distributed low-communication training of language models*, 2023, Alg. 1.
    """
    return ModelAveraging(
        every, waits, steps, outer=OuterSGD(outer_lr, outer_momentum), weights=weights, warm_up=warm_up,
        by_speed=by_speed,
    )  # fmt: skip


def BMUF(  # noqa: N802 - a named choice
    every: int, outer_lr: float = 1.0, outer_momentum: float | None = None, *, nesterov: bool = False,
    waits: Strategy = Synchronous(), steps: int | None = None,
) -> ModelAveraging:  # fmt: skip
    r"""Average models, and let the averages have a momentum (blockwise model-update filtering).

    $$G = \bar w - w, \qquad \Delta \leftarrow \mu \Delta + \eta\, G, \qquad w \leftarrow w + \Delta$$

    (with ``nesterov``, the next block begins at $w + \mu \Delta$), with ``outer_lr`` ($\eta$, the block learning rate)
    and ``outer_momentum`` ($\mu$, the block momentum; unless given $1 - 1/N$ for $N$ workers, which makes up for the
    averaging: $N$ workers then move the model as far as one would with their mini-batches one after the other).
    These are CNTK's defaults too ($\eta = 1$, $\mu = 1 - 1/N$), and fairseq's $\mu = 0.875$ is that of eight workers.
    With ``nesterov`` the model here is the point at which the next block begins, as in CNTK; fairseq's differs, for it
    adds $\mu \Delta$ at each block without taking the last one back.

    Chen & Huo, *Scalable training of deep learning machines by incremental block training with intra-block parallel
    optimization and blockwise model-update filtering*, ICASSP 2016.
    """
    return ModelAveraging(every, waits, steps, outer=OuterSGD(outer_lr, outer_momentum, nesterov))


def SlowMo(  # noqa: N802 - a named choice
    every: int, outer_lr: float = 1.0, outer_momentum: float = 0.5, *, momentum: Literal["kept", "averaged"] = "kept",
    waits: Strategy = Synchronous(), steps: int | None = None,
) -> ModelAveraging:  # fmt: skip
    r"""Average models after some steps of any optimizer, and step along the difference with a slow momentum.

    $$u \leftarrow \beta u + \frac1\gamma\,(w - \bar w), \qquad w \leftarrow w - \alpha \gamma\, u,$$

    with ``outer_lr`` ($\alpha$), ``outer_momentum`` ($\beta$) and the learning rate $\gamma$ of the workers' optimizer.
    While $\gamma$ stays the same it drops out, and this is what is done: where a scheduler changes it, the momentum
    keeps its size here, and is scaled along in the paper. ``momentum`` is about the workers' own: each keeps it, or it
    is averaged (the paper also resets it, which is left out). Larger fleets want a larger $\beta$: FairScale's default
    is 0.5, and its authors found 0 best for fewer than 4 nodes, 0.2 for 4, 0.5 for 8 and 0.6 for 16 (WMT 16 En-De).

    Wang et al., *SlowMo: improving communication-efficient distributed SGD with slow momentum*, ICLR 2020, Alg. 1.
    """
    return ModelAveraging(every, waits, steps, momentum, outer=OuterSGD(outer_lr, outer_momentum, nesterov=False))


def PostLocalSGD(  # noqa: N802 - a named choice
    every: int, warm_up: int, *, waits: Strategy = Synchronous(), steps: int | None = None
) -> ModelAveraging:
    r"""Synchronous SGD for the first ``warm_up`` updates, then averages after every ``every`` local steps.

    $$H_t = 1 \text{ for } t < t', \qquad H_t = H \text{ from then on.}$$

    The first updates, in which models would drift apart most, are those of one large batch; the paper goes local when
    the learning rate is first lowered. It is slower than local SGD during the warm-up, and generalises better than the
    large batch afterwards.

    Lin et al., *Don't use large mini-batches, use local SGD*, ICLR 2020.
    """
    return ModelAveraging(every, waits, steps, warm_up=warm_up)


def FedBuff(  # noqa: N802 - a named choice
    every: int, size: int, outer_lr: float = 1.0, *, weights: Literal["waits", "tokens", "age"] = "age"
) -> ModelAveraging:
    r"""Collect the changes of ``size`` models, and step along their mean; nobody waits (buffered aggregation).

    $$w \leftarrow w + \frac{\eta}{B} \sum_{k=1}^{B} \frac{w_k - w^{(k)}}{\sqrt{1 + a_k}},$$

    where the $k$-th of ``size`` ($B$) models began with $w^{(k)}$, $a_k$ updates ago, and made ``every`` local steps; a
    fast worker may have several of them. ``outer_lr`` is $\eta$. With ``weights="waits"`` the age does not matter.

    **Wins** where no worker may wait, and single stale models would swing. **Loses** where workers have unlike data:
    fast ones count more often. **Memory**: the models in the buffer, up to ``size`` of them, besides the workers' own.

    Nguyen et al., *Federated learning with buffered asynchronous aggregation*, AISTATS 2022.
    """
    return ModelAveraging(every, Buffered(size), outer=OuterSGD(outer_lr, 0.0, nesterov=False), weights=weights)


def DecoupledDiLoCo(  # noqa: N802 - a named choice
    every: int, quorum: int, grace: float, outer_lr: float = 0.7, outer_momentum: float = 0.9, *,
    by_speed: bool = False,
) -> ModelAveraging:  # fmt: skip
    r"""DiLoCo that waits for a quorum and a window of grace, and weighs models by their tokens.

    $$\Delta = \sum_{k \in M} \frac{\omega_k}{\sum_{j \in M} \omega_j}\,(w^{(k)} - w_k), \qquad
    \omega_k = c_k \cdot \frac{c_k}{h_k},$$

    over the models $M$ that were handed in when the window closes, $c_k$ being the samples that model $k$ was trained
    on and $h_k$ its local steps: ``ModelAveraging(every, waits=QuorumGrace(quorum, grace), outer=OuterSGD(outer_lr,
    outer_momentum), weights="tokens")``. A late model counts in the next update, by what it learnt from the model
    $w^{(k)}$ that it began with. Samples are taken to have the same number of tokens.

    Two parts of the paper are left out. Its learners exchange fragments of the parameters in turn, and keep computing
    while these are sent: here a model is sent as a whole, and its worker waits for the update. Its window of grace
    adapts itself; here it is given in seconds.

    Douillard et al., *Decoupled DiLoCo for resilient distributed pre-training*, 2026.
    """
    return ModelAveraging(
        every, QuorumGrace(quorum, grace), outer=OuterSGD(outer_lr, outer_momentum), weights="tokens", by_speed=by_speed
    )
