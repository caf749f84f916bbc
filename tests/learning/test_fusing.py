"""One pass over the mini-batches of several workers: only where it is shown to be right, and without a trace."""

import logging
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import paceline as pl
from paceline.data.samples import TensorSamples
from paceline.learning.fusing import Fusing
from paceline.learning.loss import SampleLoss
from support.digits import weights

INFLUENCE = "exact: the samples of a batch influence each other"
SHARED = "exact: random numbers or inputs of a batch cannot be told apart by samples"
ASKED = "exact: the model asks for a number of the batch as a whole, and may decide by it"
OF_NUMPY = "exact: the model draws random numbers of numpy or Python, for a batch as a whole"


class Net(nn.Module):
    """Two layers, and something of one's own between them, which is not to be seen from outside."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)
        self._between = between

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(inputs))
        return self.last(self._between(hidden) if self.training else hidden)  # type: ignore[no-any-return]


def train(
    model: nn.Module, loss: Any = functional.cross_entropy, *, evaluation: Any = "fused", workers: int = 3,
    updates: int = 6, **options: Any,
) -> pl.Run:  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(3)
        x, y = torch.randn(64, 6), torch.randint(2, (64,))
    return pl.train(
        pl.Task(model, loss, (x, y), evaluate=lambda model: {"loss": 0.0}), strategy=pl.Synchronous(), batch_size=4,
        fleet=pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation=evaluation), progress=False,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.5), stop=pl.Stop(updates=updates), **options,
    )  # fmt: skip


def mixup(hidden: Tensor) -> Tensor:
    return 0.7 * hidden + 0.3 * hidden[torch.randperm(len(hidden))]


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    """One value a sample, each of which depends on all samples."""
    alike = (targets[:, None] == targets).float()
    return -(functional.log_softmax(outputs @ outputs.T, dim=1) * alike).sum(1)


def in_chunks(hidden: Tensor) -> Tensor:
    return torch.cat([chunk - chunk.mean(0) for chunk in torch.split(hidden, 3)])


MIXING: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "functional batch norm": (lambda h: functional.batch_norm(h, None, None, training=True), INFLUENCE),
    "centred": (lambda h: h - h.mean(0), INFLUENCE),
    "hardly centred": (lambda h: h - 1e-4 * h.mean(0), INFLUENCE),
    "centred and dropped": (lambda h: functional.dropout(h - h.mean(0), 0.5), INFLUENCE),
    "no gradient through it": (lambda h: h - h.detach().mean(0), INFLUENCE),
    "only in the gradient": (lambda h: h + (h.mean() - h.mean().detach()), INFLUENCE),
    "rolled": (lambda h: h + 0.1 * h.roll(1, 0), INFLUENCE),
    "mixup": (mixup, INFLUENCE),
    "ghosts": (in_chunks, INFLUENCE),
    "as many as there are": (
        lambda h: h * len(h) / 4, "exact: the losses or gradients of samples depend on how many there are in a batch"
    ),
    "decides by its batch": (lambda h: h.abs() if h.max() > 0.9 else h, ASKED),
    "asks a view of it": (lambda h: h * (2.0 if h.T[0].clone().t_().sum().item() > 3.0 else 1.0), ASKED),
    "layer dropped": (lambda h: h if float(torch.rand(())) < 0.5 else h.abs(), SHARED),
    "noise for all": (lambda h: h + 0.1 * torch.randn(12), SHARED),
    "numpy": (lambda h: h * float(np.random.beta(2.0, 2.0)), OF_NUMPY),
    "Python": (lambda h: h * random.random(), OF_NUMPY),
    "fixed size": (
        lambda h: h.view(4, 12), "exact: a pass over two workers' samples raised RuntimeError (shape '[4, 12]' is inv"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_samples_is_computed_worker_by_worker(name: str) -> None:
    between, why = MIXING[name]
    fused, exact = (train(Net(between), evaluation=each) for each in ("fused", "exact"))
    assert (fused.evaluation or "").startswith(why)
    assert fused.summary()["evaluation"] == fused.evaluation
    assert exact.evaluation == "exact: asked for"
    assert torch.equal(weights(fused.model), weights(exact.model))


def test_rounding_that_differs_with_the_size_of_a_batch_is_no_reason_against_one_pass() -> None:
    """In float32 four digits are left, and others in larger batches; in double precision it is the same model."""
    fused = train(Net(lambda h: (h + 1000.0 * len(h)) - 1000.0 * len(h)), updates=2)
    assert fused.evaluation == "fused"


def test_a_number_that_is_not_of_the_batch_may_be_asked_for() -> None:
    """Such as a scale, or whether a mask of the model's own is that of a causal transformer."""
    scale = torch.tensor([2.0, 3.0])
    assert train(Net(lambda h: h * scale.max().item()), updates=2).evaluation == "fused"


def test_a_layer_that_some_passes_leave_out_is_no_error_of_the_trial() -> None:
    """Its gradient is nothing, which counts as zeros."""

    def without_the_last(hidden: Tensor) -> Tensor:
        return hidden if len(hidden) > 4 else hidden.detach()  # as many samples as a worker has

    run = train(Net(without_the_last), updates=2)
    assert run.evaluation == "exact: the losses or gradients of samples depend on how many there are in a batch"


def test_a_contrastive_loss_that_returns_a_vector_is_computed_worker_by_worker() -> None:
    fused, exact = (train(Net(torch.relu), contrastive, evaluation=each) for each in ("fused", "exact"))
    assert fused.evaluation == INFLUENCE
    assert torch.equal(weights(fused.model), weights(exact.model))


def test_a_loss_that_is_no_mean_and_modules_that_mix_say_so() -> None:
    def total(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="sum")

    assert (
        train(Net(torch.relu), total).evaluation == "exact: the loss of a batch is not the mean of its samples' losses"
    )
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    assert train(model).evaluation == "exact: batch normalisation"
    buffered = Net(torch.relu)
    buffered.register_buffer("scale", torch.ones(3))
    assert train(buffered).evaluation == "exact: the model has buffers of real numbers, which a pass may change"


class Opening(nn.Module):
    """Centres what it adds, by a factor that begins with nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.last = nn.Linear(6, 12), nn.Linear(12, 2)
        self.factor = nn.Parameter(torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        added = self.factor * self.factor * (hidden - hidden.mean(0))
        return self.last(hidden + added) + self.factor  # type: ignore[no-any-return]


def test_what_begins_with_zeros_shows_later_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of it is in the first pass; the first update moves the factor, which is added to all outputs too."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs[:, 0] - 2.0).square()

    with caplog.at_level(logging.INFO, logger="paceline"):
        run = train(Opening(), loss, updates=4)
    assert run.evaluation == INFLUENCE
    (warning,) = [record.getMessage() for record in caplog.records if "worker by worker" in record.getMessage()]
    assert "worker by worker from now on: the samples of a batch influence each other" in warning
    assert "made before this showed: 1;" in warning


class LargerHalf(nn.Module):
    """What is above the median of the batch. Another worker's samples move it, but maybe past none of one's own."""

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * (hidden > hidden.detach().flatten().kthvalue(hidden.numel() // 2).values)


@pytest.mark.parametrize("workers", [2, 3, 6])
def test_the_first_trial_does_not_depend_on_luck(workers: int) -> None:
    """With one pair of workers, a tenth of these are allowed."""
    for seed in range(60):
        torch.manual_seed(seed)
        x, y = torch.randn(8 * workers, 6), torch.randint(2, (8 * workers,))
        model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), LargerHalf(), nn.Linear(12, 2))
        assert not Fusing(None).allows(model, sample_loss(x, y), (x, y), [8] * workers)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.last = nn.LSTM(2, 4, num_layers=2, dropout=0.4, batch_first=True), nn.Linear(4, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.lstm(inputs.view(-1, 3, 2))[0][:, -1])  # type: ignore[no-any-return]


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.3, batch_first=True)
        self.last = nn.Linear(6, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.layer(inputs[:, None] * torch.ones(4, 1)).mean(1))  # type: ignore[no-any-return]


class Convolving(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Dropout1d(0.3), nn.Flatten(),
            nn.LayerNorm(16), nn.MaxPool1d(2), nn.Linear(8, 2),
        )  # fmt: skip


INDEPENDENT: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(6, 2),
    "relu": lambda: Net(torch.relu),
    "dropout": lambda: Net(lambda h: functional.dropout(h, 0.5)),
    "one kernel for dropout": lambda: Net(lambda h: torch.native_dropout(h, 0.5, True)[0]),
    "noise": lambda: Net(lambda h: h + 0.1 * torch.randn_like(h)),
    "noise of a sample": lambda: Net(lambda h: h * torch.rand(len(h), 1)),
    "gumbel": lambda: Net(functional.gumbel_softmax),
    "recomputed": lambda: Net(lambda h: checkpoint(lambda x: functional.dropout(x, 0.3), h, use_reentrant=False)),
    "double": lambda: Net(functional.dropout).double(),
    "recurrent": Recurrent,
    "attention": Attending,
    "convolutions": Convolving,
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_a_model_of_independent_samples_is_fused_and_the_trial_leaves_no_trace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random numbers, weights and buffers are those of a run in which nothing is tried."""
    torch.manual_seed(5)
    model = INDEPENDENT[name]()
    if name == "double":
        model = nn.Sequential(Doubling(), model)
    tried = train(model)
    assert tried.evaluation == "fused"
    monkeypatch.setattr(Fusing, "allows", lambda *_: True)
    assert torch.equal(weights(train(model).model), weights(tried.model))


class Doubling(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.double()


def test_what_a_model_notes_of_its_passes_is_not_disturbed() -> None:
    class Counting(nn.Module):
        counted: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.layer, self.passes = nn.Linear(6, 2), 0
            self.register_buffer("counted", torch.zeros((), dtype=torch.int64))

        def forward(self, inputs: Tensor) -> Tensor:
            self.passes += 1
            self.counted += 1
            return self.layer(inputs)  # type: ignore[no-any-return]

    run = train(Counting(), updates=5)
    assert isinstance(run.model, Counting)
    assert (run.evaluation, run.model.passes, int(run.model.counted)) == ("fused", 5, 5)


def test_trials_become_rare_and_are_remembered() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    state: dict[str, Any] = {}
    tried = []
    fusing = Fusing(None)
    for number in range(1, 600):
        if fusing.passes == fusing.next_trial:
            x, y = torch.randn(6, 3), torch.randint(2, (6,))
            assert fusing.allows(model, sample_loss(x, y), (x, y), [3, 3])
            tried.append(number)
        fusing.passes += 1
        state = dict(fusing.state())
        fusing = Fusing(None)
        fusing.restore(state)
    assert tried == [1, 2, 3, 9, 33, 129, 513]
    with pytest.raises(ValueError, match="is no reason"):
        fusing.restore({**state, "why not": 3})


def sample_loss(x: Tensor, y: Tensor) -> SampleLoss:
    return SampleLoss(functional.cross_entropy, TensorSamples(x, y))


def test_samples_that_are_not_finite_tell_nothing() -> None:
    x, y = torch.randn(6, 3), torch.randint(2, (6,))
    x[4, 0] = float("nan")
    fusing = Fusing(None)
    assert not fusing.allows(nn.Linear(3, 2), sample_loss(x, y), (x, y), [3, 3])
    assert (fusing.why_not, fusing.state()["passes"]) == (None, 0)
    x[4, 0] = 0.0
    assert fusing.allows(nn.Linear(3, 2), sample_loss(x, y), (x, y), [3, 3])
