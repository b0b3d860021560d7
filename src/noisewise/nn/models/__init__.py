"""Ready models from the papers, built of Lipschitz layers: certifiable as a whole.

`MLP` for tables, `ConvNet` and its presets for small images, `ResNet` with wide variants, and
`Mixer`. They take `Options` as keyword arguments and have ``project_``, ``certify``,
``lipschitz`` and ``to_plain``. `RenewedNet` and its presets have ordinary weights and renewed
cotangents, and say how they learn best (``recommended_plan``, ``recommended_training``).
"""

from noisewise.nn.models.base import LipschitzModel
from noisewise.nn.models.convnet import (
    ConvNet,
    Stage,
    benchmark_cnn,
    convnet_fashion,
    convnet_mnist,
    convnet_thesis,
    shallow_vgg,
    tempered_cnn,
)
from noisewise.nn.models.mixer import Mixer
from noisewise.nn.models.mlp import MLP
from noisewise.nn.models.options import Options
from noisewise.nn.models.renewed import (
    Recipe,
    RenewedNet,
    renewed_cifar,
    renewed_fashion,
    renewed_mnist,
)
from noisewise.nn.models.resnet import ResNet, resnet, wide_resnet

__all__ = [
    "MLP",
    "ConvNet",
    "LipschitzModel",
    "Mixer",
    "Options",
    "Recipe",
    "RenewedNet",
    "ResNet",
    "Stage",
    "benchmark_cnn",
    "convnet_fashion",
    "convnet_mnist",
    "convnet_thesis",
    "renewed_cifar",
    "renewed_fashion",
    "renewed_mnist",
    "resnet",
    "shallow_vgg",
    "tempered_cnn",
    "wide_resnet",
]
