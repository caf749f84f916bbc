"""Tests repeat: Hypothesis tries the same examples every time, and keeps none. Those on Ray stay together."""

import re

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "paceline",
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paceline")


class RayTogether(LoadScopeScheduling):  # type: ignore[misc]
    """Tests on a Ray cluster go to one process, all others wherever there is time: two clusters want more cores."""

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if "ray" in re.split(r"[\W_]", nodeid) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> RayTogether:
    return RayTogether(config, log)
