"""What several test modules share."""

import torch

torch.set_num_threads(
    1
)  # several test processes share the cores; threads that wait for each other cost 40 times as much
