"""Image models of the timm package.

timm's data transforms import torchvision, its models do not use it but for one class. Where
torchvision is not installed (its wheels come compiled for one build of torch, and the wrong one
breaks every package that looks for it), a stand-in answers the import: names without behaviour.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from functools import partial
from typing import Any

from torch import nn

from zoo.registry import CLASSES, Case, classes, cross_entropy, entry, images

TIMM = ("timm",)


class _Names(type):
    """A class in which every public name is that name, as of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(types.ModuleType):
    """A module in which every public name is an empty class."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Names(name, (), {})


def timm() -> Any:
    """The package; without torchvision, behind a stand-in that goes again after the import."""
    if "timm" not in sys.modules and importlib.util.find_spec("torchvision") is None:
        parts = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets")
        more = (".models", ".models.feature_extraction", ".utils")
        names = [f"torchvision{part}" for part in parts + more]
        sys.modules.update({name: _StandIn(name) for name in names})
        for name in names[1:]:
            parent, _, child = name.rpartition(".")
            setattr(sys.modules[parent], child, sys.modules[name])
        frozen = type("FrozenBatchNorm2d", (nn.Module,), {})
        sys.modules["torchvision.ops.misc"].FrozenBatchNorm2d = frozen  # type: ignore[attr-defined]
        try:
            import timm
        finally:
            for name in names:
                sys.modules.pop(name, None)
    import timm

    return timm


def image_case(model: nn.Module, records: int, size: int = 32) -> Case:
    return model, cross_entropy, images(records, size), classes(records)


@entry("timm ResNet with group norm", needs=TIMM, why="the usual private image model")
def resnet(records: int) -> Case:
    package = timm()
    model = package.models.resnet.ResNet(
        package.models.resnet.BasicBlock, (1, 1, 1, 1), num_classes=CLASSES, stem_width=8,
        channels=(8, 16, 16, 32), drop_rate=0.1, drop_path_rate=0.1,
        norm_layer=partial(package.layers.GroupNorm, num_groups=4),
    )  # fmt: skip
    return image_case(model.train(), records)


@entry("timm ResNet with frozen BatchNorm", needs=TIMM, why="evaluation-mode statistics")
def resnet_frozen(records: int) -> Case:
    package = timm()
    model = package.models.resnet.ResNet(
        package.models.resnet.BasicBlock, (1, 1, 1, 1), num_classes=CLASSES, stem_width=8,
        channels=(8, 16, 16, 32),
    )  # fmt: skip
    return image_case(frozen_statistics(model.train()), records)


def frozen_statistics(model: nn.Module) -> nn.Module:
    """Put every BatchNorm into evaluation mode, with parameters that do not learn."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_(std=0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.eval().requires_grad_(False)
    return model


@entry("timm ViT", needs=TIMM, why="fused attention, drop path")
def vit(records: int) -> Case:
    model = timm().models.vision_transformer.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=CLASSES,
        drop_rate=0.1, attn_drop_rate=0.1, proj_drop_rate=0.1, drop_path_rate=0.1,
    )  # fmt: skip
    return image_case(model.train(), records)


@entry("timm ConvNeXt", needs=TIMM, why="layer norm over channels, drop path")
def convnext(records: int) -> Case:
    model = timm().models.convnext.ConvNeXt(
        depths=(1, 1, 2, 1), dims=(8, 16, 16, 32), num_classes=CLASSES, drop_rate=0.1,
        drop_path_rate=0.1,
    )  # fmt: skip
    return image_case(model.train(), records)


@entry("timm Mixer", needs=TIMM, why="linear maps over positions")
def mixer(records: int) -> Case:
    model = timm().models.mlp_mixer.MlpMixer(
        img_size=32, patch_size=8, embed_dim=32, num_blocks=2, num_classes=CLASSES, drop_rate=0.1,
        proj_drop_rate=0.1, drop_path_rate=0.1,
    )  # fmt: skip
    return image_case(model.train(), records)


def small_efficientnet(**more: Any) -> nn.Module:
    package = timm()
    blocks = package.models._efficientnet_builder.decode_arch_def(
        [["ds_r1_k3_s1_e1_c8_se0.25"], ["ir_r2_k3_s2_e2_c16_se0.25"], ["ir_r1_k5_s2_e2_c16_se0.25"]]
    )
    return package.models.efficientnet.EfficientNet(
        blocks, num_classes=CLASSES, num_features=32, stem_size=8, drop_rate=0.2,
        drop_path_rate=0.2, act_layer=nn.SiLU, **more,
    )  # fmt: skip


@entry("timm EfficientNet with group norm", needs=TIMM, why="squeeze and excitation, drop path")
def efficientnet(records: int) -> Case:
    model = small_efficientnet(norm_layer=partial(timm().layers.GroupNormAct, num_groups=4))
    return image_case(model.train(), records)


@entry("timm EfficientNet with frozen BatchNorm", needs=TIMM, why="the stock model, fine-tuned")
def efficientnet_frozen(records: int) -> Case:
    return image_case(frozen_statistics(small_efficientnet().train()), records)


@entry("timm Swin", needs=TIMM, why="shifted windows, merged with the batch")
def swin(records: int) -> Case:
    model = timm().models.swin_transformer.SwinTransformer(
        img_size=32, patch_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4), window_size=4,
        num_classes=CLASSES, drop_rate=0.1, drop_path_rate=0.1,
    )  # fmt: skip
    return image_case(model.train(), records)
