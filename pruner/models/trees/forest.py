"""A random forest with the prediction of each tree."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from pruner.errors import PrunerError
from pruner.models.trees.lightgbm import import_lightgbm


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestSettings:
    """Sizes of AdaTune's release: 10 trees, 10 columns tried a split."""

    trees: int = 10
    columns_at_split: int = 10
    # of the rows without repetition: the share of distinct rows in a bootstrap
    bagging: float = 0.63

    def __post_init__(self) -> None:
        if min(self.trees, self.columns_at_split) < 1:
            raise PrunerError("policy.forest: trees and columns_at_split must be at least 1")
        if not 0 < self.bagging < 1:
            raise PrunerError("policy.forest.bagging must be above 0 and below 1")


class Forest:
    """LightGBM's random forest, tree by tree; raises MissingExtra without lightgbm."""

    def __init__(
        self,
        columns: Float[np.ndarray, "program column"],
        values: Float[np.ndarray, " program"],
        *,
        settings: ForestSettings | None = None,
        seed: int,
    ) -> None:
        lightgbm = import_lightgbm()
        settings = settings or ForestSettings()
        share = min(1.0, settings.columns_at_split / columns.shape[1])
        parameters: dict[str, Any] = {
            "boosting": "rf",
            "objective": "regression",
            # Grown to single rows, scikit-learn's default for a regression forest.
            "num_leaves": max(2, len(columns)),
            "min_data_in_leaf": 1,
            "min_data_in_bin": 1,
            "bagging_freq": 1,
            "bagging_fraction": settings.bagging,
            "feature_fraction_bynode": share,
            "seed": seed,
            # Few rows; and a single thread, so that sums do not depend on the machine.
            "num_threads": 1,
            "deterministic": True,
            "force_row_wise": True,
            "verbosity": -1,
        }
        data = lightgbm.Dataset(columns, label=values)
        self._booster = lightgbm.train(parameters, data, settings.trees)

    def trees(
        self, columns: Float[np.ndarray, "program column"]
    ) -> Float[np.ndarray, "tree program"]:
        """Predictions [tree, program]."""
        count = self._booster.num_trees()
        each = [
            self._booster.predict(columns, start_iteration=tree, num_iteration=1)
            for tree in range(count)
        ]
        return np.stack(each) if each else np.zeros((1, len(columns)))
