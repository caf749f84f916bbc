"""Numbers and structures as results hold them. Apart from the card, on which no result may depend."""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def rounded(value: float, digits: int = 5) -> float:
    """So many digits of a number: curves need no more."""
    return float(f"{value:.{digits}g}")


def plain_values(value: Any) -> Any:
    """Lists and dictionaries of plain values, as JSON has them; a number that is not finite becomes null."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(each) for each in value]
    if isinstance(value, Path):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sum_of(values: Mapping[str, Any]) -> str:
    """Of plain values, the same when they are read back: what was changed or cut off in a file has another one."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
