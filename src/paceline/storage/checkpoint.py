r"""A checkpoint on disk: one file, whole or not there, that is read without running any code of it.

It is a safetensors file. The tensors lie in it as they are; everything else is text in its header: the number of the
format, a checksum over the rest and all tensors, and JSON in which a tensor is named by its place.

    {"paceline_checkpoint": "1 5d5e1a0f {\"server\": ..., \"loop\": ..., ...}"}

What JSON does not know is marked: {"$": "tensor", "of": name}, and in the same way array, tuple, dict (with keys that
are no texts) and counter.
"""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.files import check_regular, write_atomically
from paceline.storage.saved_models import UNREADABLE

FORMAT = 1
KEY = "paceline_checkpoint"


def write_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write a nested state of plain values, arrays and tensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_encode(state, "", tensors))
    try:
        data = save(tensors, {KEY: f"{FORMAT} {_checksum(text, sorted(tensors.items()))} {text}"})
    except (SafetensorError, KeyError, ValueError) as error:
        raise ConfigError(f"cannot write {path}: {error}") from None
    write_atomically(path, data)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what ``write_checkpoint`` wrote; refuse anything else in one line."""
    if not path.is_file():
        raise ConfigError(f"no checkpoint at {path}")
    check_regular(path)
    try:
        with safe_open(path, framework="pt") as file:
            checksum, text = _parts(path, (file.metadata() or {}).get(KEY))
            names = sorted(file.keys())
            if checksum != _checksum(text, ((name, file.get_tensor(name)) for name in names)):  # no two held at once
                raise ConfigError(f"{path} is damaged: its checksum does not fit its content")
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, *UNREADABLE) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is no whole checkpoint of Paceline: {_line(error)}") from None
    try:
        state = _decode(json.loads(text), tensors)
    except (KeyError, ValueError, TypeError, RecursionError, RuntimeError) as error:
        raise ConfigError(f"{path} cannot be understood: {_line(error)}") from None
    if not isinstance(state, dict):
        raise ConfigError(f"{path} cannot be understood: it holds {type(state).__name__}, not the parts of a run")
    return state


def _parts(path: Path, header: str | None) -> tuple[str, str]:
    """The checksum and the JSON of a header."""
    if header is None:
        raise ConfigError(f"{path} is a safetensors file, but no checkpoint of Paceline")
    version, _, rest = header.partition(" ")
    if version != str(FORMAT):
        raise ConfigError(f"{path} has format {version[:20]}; this version of Paceline reads format {FORMAT}")
    checksum, _, text = rest.partition(" ")
    return checksum, text


def _encode(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    def inside(name: object, each: Any) -> Any:
        return _encode(each, f"{place}/{name}" if place else str(name), tensors)

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        tensors[place] = value.detach().to("cpu", copy=True).contiguous()
        return {"$": "tensor", "of": place} | ({} if value.device.type == "cpu" else {"on": str(value.device)})
    if isinstance(value, np.ndarray):
        tensors[place] = torch.from_numpy(value.copy())
        return {"$": "array", "of": place}
    if isinstance(value, list):
        return [inside(number, each) for number, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"$": "tuple", "of": [inside(number, each) for number, each in enumerate(value)]}
    if isinstance(value, Mapping):
        if type(value) is not Counter and all(isinstance(key, str) and key != "$" for key in value):
            return {key: inside(key, each) for key, each in value.items()}
        pairs = [[inside("key", key), inside(key, each)] for key, each in value.items()]
        return {"$": "counter" if type(value) is Counter else "dict", "of": pairs}
    raise ConfigError(f"cannot be kept in a checkpoint: {place or 'it'} is a {type(value).__name__}")


def _decode(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_decode(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: _decode(each, tensors) for key, each in value.items()}
    kind, of = value["$"], value["of"]
    if kind == "tensor":
        return tensors[of].to(value.get("on", "cpu"))
    if kind == "array":
        return tensors[of].numpy()
    if kind == "tuple":
        return tuple(_decode(each, tensors) for each in of)
    if kind in ("dict", "counter"):
        pairs = {_decode(key, tensors): _decode(each, tensors) for key, each in of}
        return pairs if kind == "dict" else Counter(pairs)
    raise ValueError(f"{kind!r} is no kind of value")


def _checksum(text: str, tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Over the text and the tensors, which come in the order of their names."""
    sum_so_far = zlib.crc32(text.encode())
    for name, tensor in tensors:
        sum_so_far = zlib.crc32(f"{name} {tensor.dtype} {list(tensor.shape)}".encode(), sum_so_far)
        if tensor.numel():
            sum_so_far = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, sum_so_far)
    return f"{sum_so_far:08x}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
