"""Estimators on disk without pickle: weights as safetensors, the rest as JSON beside them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from noisewise.datasets import Schema
from noisewise.estimators.base import PrivateEstimator
from noisewise.estimators.calibration import Calibration
from noisewise.estimators.classifier import PrivateClassifier
from noisewise.estimators.pictures import PictureFeatures
from noisewise.estimators.regressor import PrivateRegressor
from noisewise.estimators.whitening import Whitening
from noisewise.privacy import Statement

__all__ = ["load_estimator", "save_estimator"]

_KINDS = {kind.__name__: kind for kind in (PrivateClassifier, PrivateRegressor)}
_VERSION = 1


def save_estimator(estimator: PrivateEstimator, folder: str | os.PathLike[str]) -> None:
    """Write a fitted estimator into a folder: weights.safetensors and estimator.json.

    Everything written is public: it follows from the noisy weights and the settings. Pictures
    given as `public_images` are not written, only the whitening that was taken from them.
    """
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    schema = estimator._schema
    settings = {k: v for k, v in estimator.get_params().items() if _plain(v)}
    for name in ("schema", "ledger"):
        settings.pop(name, None)
    document: dict[str, Any] = {
        "version": _VERSION,
        "kind": type(estimator).__name__,
        "settings": settings,
        "schema": None if schema is None else json.loads(schema.to_json()),
        "statement": json.loads(estimator.statement_.to_json()),
        "features": int(estimator.n_features_in_),
        "names": [str(n) for n in getattr(estimator, "feature_names_in_", [])],
        "steps": int(estimator.n_iter_),
    }
    if isinstance(estimator, PrivateClassifier):
        document["classes"] = estimator.classes_.tolist()
        line = estimator.calibration_
        document["calibration"] = [line.slope, line.offset, line.power]
    if isinstance(estimator, PrivateRegressor):
        document["target_range"] = list(estimator.target_range_)
    arrays = {}
    if hasattr(estimator, "pictures_"):
        seen: PictureFeatures = estimator.pictures_
        document["pictures"] = {
            name: getattr(seen, name) for name in ("height", "width", "channels", "largest", "kind")
        }
        if seen.whitening is not None:
            arrays["pictures.mean"] = seen.whitening.mean
            arrays["pictures.matrix"] = np.ascontiguousarray(seen.whitening.matrix)
    for index, (matrix, bias) in enumerate(estimator.weights_):
        arrays[f"{index}.weight"], arrays[f"{index}.bias"] = matrix, bias
    save_file(arrays, place / "weights.safetensors")
    # Last and at once: a folder with this file holds a whole model.
    unfinished = place / "estimator.json.part"
    unfinished.write_text(json.dumps(document, indent=2) + "\n", "utf-8")
    unfinished.replace(place / "estimator.json")


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, list, tuple))


def load_estimator(folder: str | os.PathLike[str]) -> PrivateEstimator:
    """Read what `save_estimator` wrote.

    Raises
    ------
    ValueError
        If the folder holds something else, or another version of it.
    """
    place = Path(folder)
    if not (place / "estimator.json").is_file():
        raise ValueError(
            f"{str(place)!r} holds no model: give a folder that save_estimator or noisewise train "
            "--out wrote"
        )
    document = json.loads((place / "estimator.json").read_text("utf-8"))
    if document.get("version") != _VERSION or document.get("kind") not in _KINDS:
        raise ValueError(
            f"{place / 'estimator.json'} holds no estimator of this version: kind "
            f"{document.get('kind')!r}, version {document.get('version')!r}"
        )
    estimator = _KINDS[document["kind"]](**document["settings"])
    if document["schema"] is not None:
        estimator.schema = Schema.from_json(json.dumps(document["schema"]))
    arrays = load_file(place / "weights.safetensors")
    count = sum(name.endswith(".weight") for name in arrays)
    estimator.weights_ = [(arrays[f"{i}.weight"], arrays[f"{i}.bias"]) for i in range(count)]
    estimator.statement_ = Statement.from_json(json.dumps(document["statement"]))
    estimator.n_features_in_ = document["features"]
    estimator.n_iter_ = document["steps"]
    if document["names"]:
        estimator.feature_names_in_ = np.asarray(document["names"], dtype=object)
    if isinstance(estimator, PrivateClassifier):
        estimator.classes_ = np.asarray(document["classes"])
        estimator.calibration_ = Calibration(*document.get("calibration", ()))
    if isinstance(estimator, PrivateRegressor):
        low, high = document["target_range"]
        estimator.target_range_ = (low, high)
    if "pictures" in document:
        whitening = None
        if "pictures.matrix" in arrays:
            whitening = Whitening(arrays["pictures.mean"], arrays["pictures.matrix"])
        estimator.pictures_ = PictureFeatures(**document["pictures"], whitening=whitening)
    return estimator
