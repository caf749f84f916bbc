"""The reproduction of *Differential Equations for Modeling Asynchronous Algorithms*: what is known without sampling."""

import pytest

from reproductions.sdde.claims import exact_claims


def test_exact_claims_hold_without_sampling() -> None:
    claims = {claim.name: claim for claim in exact_claims()}
    assert all(claim.holds for claim in claims.values())
    assert claims["dominant_root"].ours == pytest.approx(-2.236651183, abs=5e-10)
    assert claims["stationary_variance.discrete"].ours == pytest.approx(0.00555469948, abs=5e-12)
