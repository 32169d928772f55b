"""From rows to a forest: gradient boosting with CatBoost, exported to plain arrays."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from infercast.errors import InputError
from infercast.fit.refine import refine
from infercast.predict.artifact.forest import Forest

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How hard a forest is fitted."""

    trees: int = 300
    depth: int = 6
    learning_rate: float = 0.12
    borders: int = 96
    most_rows: int = 30_000
    most_features: int = 256
    """Only those that a first fit finds most important are used: each costs time whenever a kernel is estimated."""
    random_strength: float = 1.0
    """Noise on the scores by which splits are chosen."""
    refinements: int = 0
    """How many times leaves are fitted again."""
    loss: str = "MAE"
    """What is made least, by CatBoost's name."""

    @property
    def lighter(self) -> Settings:
        """For trial fits, which only tell how wide an interval must be."""
        return replace(self, most_rows=10_000)


def boost(features: Array, target: Array, settings: Settings, weight: Array | None = None) -> Forest:
    """A forest that predicts ``target`` with the least mean absolute error."""
    if not np.ptp(features.astype(np.float32), axis=0).any():  # one shape, or the same one again: nothing to ask
        return _constant(features.shape[1], float(np.median(target)))
    model = _fit(features, target, settings, weight)
    if np.count_nonzero(importance := model.get_feature_importance()) > settings.most_features:
        features = features.copy()
        features[:, np.argsort(-importance, kind="stable")[settings.most_features :]] = 0.0
        model = _fit(features, target, settings, weight)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(str(path), format="json")
        forest = _forest(json.loads(path.read_text(encoding="utf-8")))
    return refine(forest, features, target, settings.refinements) if settings.refinements else forest


def _constant(num_features: int, value: float) -> Forest:
    """One tree that asks nothing and adds nothing to a value."""
    borders = tuple(np.zeros(0, dtype=np.float32) for _ in range(num_features))
    none = np.zeros((1, 1), dtype=np.uint8)
    return Forest(borders, none, none + 255, np.zeros((1, 2), dtype=np.float32), value)


def _fit(features: Array, target: Array, settings: Settings, weight: Array | None) -> Any:
    try:
        from catboost import CatBoostRegressor  # noqa: PLC0415 - an extra, and slow to import
    except ImportError:
        raise InputError("fitting needs CatBoost: pip install 'infercast[fit]'") from None
    model = CatBoostRegressor(
        iterations=settings.trees,
        depth=settings.depth,
        learning_rate=settings.learning_rate,
        border_count=settings.borders,
        loss_function=settings.loss,
        random_strength=settings.random_strength,
        random_seed=0,
        thread_count=2,
        allow_writing_files=False,
        verbose=False,
    )
    return model.fit(features.astype(np.float32), target, sample_weight=weight)


def _forest(document: dict[str, Any]) -> Forest:
    """CatBoost's JSON as arrays; levels that a short tree lacks always answer no."""
    borders = tuple(
        np.array(sorted(feature["borders"] or []), dtype=np.float32)
        for feature in document["features_info"]["float_features"]
    )
    trees = document["oblivious_trees"]
    depth = max(len(tree["splits"] or []) for tree in trees)
    features = np.zeros((len(trees), depth), dtype=np.uint8)
    bins = np.full((len(trees), depth), 255, dtype=np.uint8)
    leaves = np.zeros((len(trees), 2**depth), dtype=np.float32)
    scale, bias = document["scale_and_bias"]
    for number, tree in enumerate(trees):
        for level, split in enumerate(tree["splits"] or []):
            feature = split["float_feature_index"]
            features[number, level] = feature
            bins[number, level] = np.searchsorted(borders[feature], np.float32(split["border"]))
        values = np.array(tree["leaf_values"], dtype=np.float32) * scale
        leaves[number, : len(values)] = values
    return Forest(borders, features, bins, leaves, float(np.ravel(bias)[0]))
