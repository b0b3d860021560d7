"""What can be asked of a public function stands in its signature, and nowhere else."""

import dataclasses
import importlib
import inspect

import pytest

import noisewise as nw
from noisewise import auditing, debugging, ecdf
from noisewise.analysis import calibration
from noisewise.analysis.calibration.metrics import MeasureOptions
from noisewise.auditing.auditor import ATTACKS, AttackOptions
from noisewise.debugging.checking import CheckOptions
from noisewise.ecdf import options as curves
from noisewise.nn.models import RenewedNet
from noisewise.nn.models.options import ModelOptions, Options
from noisewise.nn.models.renewed import RenewedOptions
from noisewise.training.options import RunOptions

PACKAGES = (
    "noisewise", "noisewise.accelerate", "noisewise.analysis.calibration",
    "noisewise.analysis.clipping_bias", "noisewise.analysis.membership", "noisewise.analysis.ntk",
    "noisewise.auditing",
    "noisewise.bounds", "noisewise.datasets", "noisewise.debugging", "noisewise.ecdf",
    "noisewise.estimators", "noisewise.federated", "noisewise.gradients", "noisewise.lightning",
    "noisewise.mechanisms", "noisewise.nn", "noisewise.nn.losses", "noisewise.nn.models",
    "noisewise.privacy", "noisewise.release", "noisewise.reports", "noisewise.separation",
    "noisewise.training",
)  # fmt: skip

#: Names that somebody else decides about: the caller, the fields of a class, a drawing library.
OPEN = {
    "Plan.with_", "RenewedNet.recommended_plan", "PrivateRun.save", "PrivateRun.resume",
    "AttackResult.plot", "PrivateCalibration.plot", "PrivateECDF.plot", "PrivateHistogram.plot",
    "PrivateROC.plot",
}  # fmt: skip


def public_functions(package):
    """Functions and methods that a package shows, with their names."""
    try:
        module = importlib.import_module(package)
    except nw.NoisewiseError:
        pytest.skip("an extra is not installed")
    for name in module.__all__:
        shown = getattr(module, name)
        if not inspect.isclass(shown):
            yield name, shown
        elif shown.__module__.startswith("noisewise"):
            for method, function in vars(shown).items():
                if not method.startswith("_") or method in ("__init__", "__call__"):
                    yield f"{name}.{method}", function


def takes_anything(function):
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.kind is p.VAR_KEYWORD and p.annotation in ("Any", "object") for p in parameters)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_function_takes_arguments_of_any_name(package):
    found = {name for name, function in public_functions(package) if takes_anything(function)}
    assert found <= OPEN


def test_arguments_of_any_name_are_noticed():
    def open_door(**options: "Any"):  # noqa: F821
        pass

    assert takes_anything(open_door)


def keywords(function, *, without=()):
    parameters = inspect.signature(function).parameters.values()
    return {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - set(without)


@pytest.mark.parametrize(
    ("options", "function", "given"),
    [
        (RunOptions, nw.make_private, {"resume"}),
        (CheckOptions, debugging.check, set()),
        (RenewedOptions, RenewedNet, set()),
        (MeasureOptions, calibration.measure, set()),
        (curves.CalibrationOptions, ecdf.private_calibration, {"epsilon", "n_bins"}),
        (curves.HistogramOptions, ecdf.private_histogram, {"epsilon"}),
        (curves.QuantileOptions, ecdf.dp_quantile, {"bounds"}),
    ],
)
def test_options_that_are_handed_on_are_those_of_the_function(options, function, given):
    assert set(options.__annotations__) == keywords(function, without=given)


def test_options_of_models_are_the_fields_of_their_class():
    assert list(ModelOptions.__annotations__) == [f.name for f in dataclasses.fields(Options)]


def test_options_of_attacks_are_those_of_all_attacks():
    taken = {name for attack in ATTACKS.values() for name in keywords(attack)}
    assert set(AttackOptions.__annotations__) == taken
    assert callable(auditing.audit)
