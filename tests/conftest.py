"""Tests repeat: Hypothesis tries the same examples every time, and keeps none."""

from hypothesis import HealthCheck, Phase, settings

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
