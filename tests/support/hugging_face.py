"""A tiny model trained by Hugging Face's ``Trainer``, with its steps recorded."""

from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, Trainer, TrainingArguments

from paceline.integrations.huggingface import RecorderCallback


class TinyModel(PreTrainedModel):  # type: ignore[misc]
    """A linear layer that returns its loss."""

    config_class = PretrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.layer = nn.Linear(4, 2)
        self.post_init()

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layer(inputs)
        return {"logits": logits} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}


def samples(count: int) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [{"inputs": torch.rand(4, generator=generator), "labels": number % 2} for number in range(count)]


def train_recorded(directory: str, output: str, **options: Any) -> None:
    arguments = TrainingArguments(
        output_dir=output, per_device_train_batch_size=4, use_cpu=True, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, **options,
    )  # fmt: skip
    callbacks = [RecorderCallback(directory)]
    Trainer(TinyModel(PretrainedConfig()), arguments, train_dataset=samples(48), callbacks=callbacks).train()
