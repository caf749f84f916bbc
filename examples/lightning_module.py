"""A LightningModule on workers of unequal speed.

    python examples/lightning_module.py

Needs: pip install 'paceline[lightning,demo]'. The module is an ordinary one; nothing in it knows Paceline.
"""

import pytorch_lightning as lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import TensorDataset

import paceline
from paceline.delays import Constant
from paceline.integrations.lightning import optimizer_from, task_from


class Digits(lightning.LightningModule):
    def __init__(self, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        self.log("val_accuracy", (self.net(images).argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        biases = [p for name, p in self.named_parameters() if name.endswith("bias")]
        weights = [p for name, p in self.named_parameters() if not name.endswith("bias")]
        groups = [{"params": weights, "weight_decay": 1e-4}, {"params": biases, "weight_decay": 0.0}]
        return torch.optim.SGD(groups, lr=self.hparams.lr, momentum=0.9)


def main() -> None:
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    data = TensorDataset(images.float() / 16, labels)
    train, test = torch.utils.data.random_split(data, [1400, 397], torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    module = Digits()
    for strategy in (paceline.Synchronous(), paceline.LiveCompensation(quorum=3, blocks=4)):
        run = paceline.train(
            task_from(module, train=train, test=test),
            strategy=strategy,
            fleet=paceline.SimulatedFleet([Constant(0.1), Constant(0.1), Constant(0.1), Constant(0.4)]),
            optimizer=optimizer_from(module),
            stop=paceline.Stop(updates=120),
            every=paceline.Every(updates=120),
            progress=False,
        )
        last = run.history[-1]
        accuracy = last.metrics["val_accuracy"]
        print(f"{type(strategy).__name__}: accuracy {accuracy:.1%} after {last.seconds:.1f} virtual seconds")


if __name__ == "__main__":
    main()
