"""Device constants as numbers."""

import numpy as np
import pytest

from pruner.errors import DataError
from pruner.features.device_vector import HARDWARE_NAMES, known_platforms, platform_features

AT = {name: i for i, name in enumerate(HARDWARE_NAMES)}


def test_a_gpu_by_hand():
    v100 = platform_features("v100")
    assert v100[AT["is_gpu"]] == 1
    assert v100[AT["num_sms"]] == pytest.approx(np.log2(80))
    assert v100[AT["shared_bytes_per_block"]] == pytest.approx(np.log2(49152))
    assert v100[AT["num_cores"]] == 0


def test_every_described_platform_has_finite_numbers_of_its_own():
    vectors = np.stack([platform_features(name) for name in known_platforms()])
    assert vectors.shape == (len(known_platforms()), 20)
    assert np.isfinite(vectors).all()
    assert {"v100", "k80", "cpu-avx2"} <= set(known_platforms())


def test_an_unknown_platform_names_the_known_ones():
    with pytest.raises(DataError, match=r"known platforms: .*v100"):
        platform_features("nowhere")
