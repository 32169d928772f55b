"""What tests of predictors share."""

import numpy as np
import pytest

from infercast.predict.fitted import Forest


@pytest.fixture
def random_forest():
    """A function that makes a forest of noise, the same one every time."""

    def make(trees: int = 40, depth: int = 6, features: int = 7) -> Forest:
        rng = np.random.default_rng(3)
        return Forest(
            features=rng.integers(features, size=(trees, depth)).astype(np.uint8),
            borders=rng.normal(size=(trees, depth)).astype(np.float32),
            leaves=rng.normal(size=(trees, 2**depth)).astype(np.float32),
            bias=0.25,
        )

    return make
