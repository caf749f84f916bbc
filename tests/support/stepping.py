"""Tasks with a step: models and batches of many kinds, and a plain loop of torch over the same mini-batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.checkpoint import checkpoint

import paceline as pl
from paceline.fleets.base import Fleet
from paceline.learning.generators import own_generators, seed_generators, work_seed
from support.digits import Noted

UPDATES, WORKERS = 4, 2
WORDS = 20


def table() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(64, 6, generator=generator), torch.randint(0, 2, (64,), generator=generator)


def texts() -> list[dict[str, Any]]:
    """Sentences of 2 to 7 words, each with a class."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 8, (64,), generator=generator).tolist()
    return [
        {"tokens": torch.randint(1, WORDS, (n,), generator=generator), "label": number % 2}
        for number, n in enumerate(lengths)
    ]


def padded(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    tokens = pad_sequence([sample["tokens"] for sample in samples], batch_first=True)
    return {"tokens": tokens, "mask": tokens != 0, "label": torch.tensor([sample["label"] for sample in samples])}


def mlp(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), *layers, nn.ReLU(), nn.Linear(8, 2))


class Classifier(nn.Module):
    """The mean of the embeddings of the words that are there."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(WORDS, 6), mlp()

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        there = mask.unsqueeze(-1)
        outputs: Tensor = self.head((self.embedding(tokens) * there).sum(1) / there.sum(1))
        return outputs


class Tied(nn.Module):
    """Predicts each word from the one before it, with one matrix for both."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.embedding(tokens))
        return outputs


class Checkpointed(nn.Module):
    """Computes its body again in the backward pass."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.body, self.reentrant = nn.Linear(6, 8), mlp(nn.Dropout(0.5)), reentrant
        self.body[0] = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = checkpoint(self.body, self.first(x), use_reentrant=self.reentrant)
        return outputs


class Unused(nn.Module):
    """Has a layer that its loss never depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = mlp(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.used(x)
        return outputs


class Mixed(nn.Module):
    """A body in bfloat16, a head in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 8).bfloat16(), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(self.body(x.bfloat16()).relu().float())
        return outputs


def frozen() -> nn.Module:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def compiled() -> nn.Module:
    model: nn.Module = torch.compile(mlp(), backend="aot_eager", fullgraph=True)  # type: ignore[assignment]
    return model


# Steps.


def each(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs), targets, reduction="none")


def mean(model: nn.Module, batch: Any) -> Tensor:
    return each(model, batch).mean()


def logging(model: nn.Module, batch: Any) -> dict[str, Any]:
    outputs = model(batch[0])
    right = (outputs.argmax(dim=1) == batch[1]).float()
    loss = functional.cross_entropy(outputs, batch[1], reduction="none")
    return {"loss": loss, "right": right, "half": 0.5, "outputs": outputs}


def autocast(model: nn.Module, batch: Any) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(batch[0])
    return functional.cross_entropy(outputs.float(), batch[1], reduction="none")


def on_text(model: nn.Module, batch: Any) -> Tensor:
    return functional.cross_entropy(model(batch["tokens"], batch["mask"]), batch["label"], reduction="none")


def next_word(model: nn.Module, batch: Any) -> Tensor:
    """The mean loss of each sentence's words."""
    tokens, mask = batch["tokens"], batch["mask"][:, 1:]
    losses = functional.cross_entropy(model(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:], reduction="none")
    means: Tensor = (losses * mask).sum(1) / mask.sum(1)
    return means


class Case(NamedTuple):
    model: Callable[[], nn.Module] = mlp
    step: Callable[[nn.Module, Any], Any] = each
    data: Any = table()
    collate: Callable[[list[Any]], Any] | None = None
    within: float = 1e-6
    evaluation: str = "fused"  # how gradients are computed in a simulation
    draws: bool = False  # does it draw random numbers?

    def task(self, **more: Any) -> pl.Task:
        return pl.Task(self.made(), step=self.step, train=self.data, collate=self.collate, **more)

    def made(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return self.model()

    def batch(self, indices: Sequence[int]) -> Any:
        if self.collate is None or isinstance(self.data, tuple):
            return tuple(part[list(indices)] for part in self.data)
        return self.collate([self.data[i] for i in indices])


WHOLE = "exact: step returns one loss for a batch, not one for each sample"
TEXT = "exact: batches of several workers differ in shape, or hold more than a row for each sample"
HALF = "exact: gradients of half precision are added up in single precision"
CASES: dict[str, Case] = {
    "losses of samples": Case(),
    "mean losses": Case(step=mean, evaluation=WHOLE),
    "a mapping": Case(step=logging),
    "padded text in dicts": Case(Classifier, on_text, texts(), padded, evaluation=TEXT),
    "tied parameters": Case(Tied, next_word, texts(), padded, evaluation=TEXT),
    "dropout": Case(lambda: mlp(nn.Dropout(0.5)), draws=True),
    "batch normalisation": Case(lambda: mlp(nn.BatchNorm1d(8)), evaluation="exact: batch normalisation"),
    "checkpointing": Case(lambda: Checkpointed(reentrant=False), draws=True),
    "reentrant checkpointing": Case(lambda: Checkpointed(reentrant=True), draws=True, evaluation="exact: a pass"),
    "frozen parameters": Case(frozen),
    "unused parameters": Case(Unused),
    "bfloat16": Case(lambda: mlp().bfloat16(), data=(table()[0].bfloat16(), table()[1]), within=0.02, evaluation=HALF),
    "mixed types": Case(Mixed, within=0.02, evaluation=HALF),
    "autocast": Case(step=autocast, within=0.02),
    "torch.compile": Case(compiled),
}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.2, momentum=0.5, weight_decay=0.01)


def by_hand(
    case: Case, draws: dict[int, list[list[int]]], optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
) -> nn.Module:
    """Plain torch: a step along the mean of the workers' gradients; buffers are the mean of theirs."""
    model = case.made()
    moved = sgd(p for p in model.parameters() if p.requires_grad) if optimizer is None else optimizer(model)
    with own_generators(0):
        for update in range(UPDATES):
            moved.zero_grad()
            before = {name: buffer.clone() for name, buffer in model.named_buffers()}
            after: list[dict[str, Tensor]] = []
            for worker in range(WORKERS):
                for name, buffer in model.named_buffers():
                    buffer.copy_(before[name])
                seed_generators(work_seed(0, worker, update))
                returned = case.step(model, case.batch(draws[worker][update]))
                loss = returned["loss"] if isinstance(returned, dict) else returned
                (loss.mean() / WORKERS).backward()
                after.append({name: buffer.clone() for name, buffer in model.named_buffers()})
            for name, buffer in model.named_buffers():
                values = torch.stack([each[name] for each in after])
                buffer.copy_(values.mean(0) if buffer.is_floating_point() else values[0])
            moved.step()
    return model


@dataclass
class Trained:
    run: pl.Run
    drawn: Noted = field(default_factory=Noted)


def trained(case: Case, fleet: Fleet, **changed: Any) -> Trained:
    drawn = Noted()
    asked: dict[str, Any] = {
        "strategy": pl.Synchronous(), "optimizer": sgd, "stop": pl.Stop(updates=UPDATES), "batch_size": 6,
        "progress": False, "sampling": drawn,
    }  # fmt: skip
    task = changed.pop("task", None) or case.task()
    return Trained(pl.train(task, fleet=fleet, **{**asked, **changed}), drawn)


def simulated(evaluation: str = "fused", workers: int = WORKERS) -> pl.SimulatedFleet:
    return pl.SimulatedFleet(pl.delays.Constant(1.0), workers=workers, evaluation=evaluation)  # type: ignore[arg-type]


def close(model: nn.Module, expected: nn.Module, within: float) -> None:
    found, wanted = model.state_dict(), expected.state_dict()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        torch.testing.assert_close(found[name], value, rtol=within, atol=within)
