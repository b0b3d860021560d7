"""What users compose: layers and losses about which bounds are proven."""

from noisewise.nn import (
    effective as effective,  # registers rules of reparametrised layers
    losses,
    models,
)
from noisewise.nn.activations import (
    AbsoluteValue,
    CReLU,
    GroupSort,
    HouseholderActivation,
    MaxMin,
    TemperedSigmoid,
)
from noisewise.nn.conv import (
    SpectralConv1d,
    SpectralConv2d,
    SpectralConv3d,
    SpectralConvTranspose1d,
    SpectralConvTranspose2d,
    SpectralConvTranspose3d,
)
from noisewise.nn.gradient import AdaptiveClipGradient, ClipGradient, RenewGradient
from noisewise.nn.input import BoundedInput
from noisewise.nn.linear import FrobeniusLinear, InducedLinear, SpectralLinear
from noisewise.nn.normalisation import LayerCentering, LipschitzGroupNorm, LipschitzLayerNorm
from noisewise.nn.orthogonal import OrthogonalConv2d
from noisewise.nn.patches import PatchFeatures
from noisewise.nn.plain import register_plain, to_plain
from noisewise.nn.pooling import ScaledAvgPool2d, ScaledL2Pool2d
from noisewise.nn.projections import (
    PROJECTIONS as PROJECTIONS,
    Projectable as Projectable,
    ProjectionReport,
    bjorck_,
    clip_absolute_sums,
    clip_singular_values,
    clip_weights,
    fix_weights,
    project,
)
from noisewise.nn.repair import fix
from noisewise.nn.residual import ConvexMix, LipschitzResidual
from noisewise.nn.scattering import Scattering2d
from noisewise.nn.standardised import StandardisedConv2d, StandardisedLinear

__all__ = [
    "AbsoluteValue",
    "AdaptiveClipGradient",
    "BoundedInput",
    "CReLU",
    "ClipGradient",
    "ConvexMix",
    "FrobeniusLinear",
    "GroupSort",
    "HouseholderActivation",
    "InducedLinear",
    "LayerCentering",
    "LipschitzGroupNorm",
    "LipschitzLayerNorm",
    "LipschitzResidual",
    "MaxMin",
    "OrthogonalConv2d",
    "PatchFeatures",
    "ProjectionReport",
    "RenewGradient",
    "ScaledAvgPool2d",
    "ScaledL2Pool2d",
    "Scattering2d",
    "SpectralConv1d",
    "SpectralConv2d",
    "SpectralConv3d",
    "SpectralConvTranspose1d",
    "SpectralConvTranspose2d",
    "SpectralConvTranspose3d",
    "SpectralLinear",
    "StandardisedConv2d",
    "StandardisedLinear",
    "TemperedSigmoid",
    "bjorck_",
    "clip_absolute_sums",
    "clip_singular_values",
    "clip_weights",
    "fix",
    "fix_weights",
    "losses",
    "models",
    "project",
    "register_plain",
    "to_plain",
]
