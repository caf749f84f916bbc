"""Tests repeat: Hypothesis tries the same examples every time, and keeps none."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "paceline",
    max_examples=20,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("paceline")
