"""The one list of layers about which something is proven.

A layer joins by registering a :class:`~noisewise.bounds.layer.LayerRule` for its
type. A subclass inherits the rule only if it cannot have changed what the layer
computes; everything else is refused by name and path.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from torch import nn
from torch.nn.modules import module as of_all_modules
from torch.nn.utils.parametrize import is_parametrized

from noisewise.bounds.layer import LayerRule
from noisewise.errors import UnsupportedModelError

__all__ = [
    "Refusal",
    "hooks_of",
    "is_known",
    "lookup",
    "refuse_type",
    "register",
    "registered",
    "rule_for",
]

RuleType = TypeVar("RuleType", bound=type[LayerRule[Any]])

_RULES: dict[type[nn.Module], LayerRule[Any]] = {}
_REFUSALS: dict[type[nn.Module], Refusal] = {}

# A subclass may redefine these without touching what forward computes.
_HARMLESS = frozenset(
    {
        "__init__", "__doc__", "__module__", "__qualname__", "__annotations__", "__constants__",
        "__repr__", "__str__", "__dict__", "__weakref__", "__parameters__", "__orig_bases__",
        "__annotate__", "__annotate_func__", "__annotations_cache__", "__static_attributes__",
        "__firstlineno__", "_version", "cls_to_become", "extra_repr", "reset_parameters",
    }
)  # fmt: skip
_BORN_WITH = frozenset(dir(object)) - {"__getattribute__"}


@dataclass(frozen=True)
class Refusal:
    """Why a layer can have no rule, and what to use instead."""

    reason: str
    fix: str


def register(*module_types: type[nn.Module]) -> Callable[[RuleType], RuleType]:
    """Class decorator: the rule of these layer types.

    Examples
    --------
    >>> from torch import nn
    >>> from noisewise.bounds import LayerRule, register
    >>> class Halve(nn.Module):
    ...     def forward(self, x):
    ...         return x / 2
    >>> @register(Halve)
    ... class HalveRule(LayerRule):
    ...     def lipschitz(self, call):
    ...         return 0.5
    """

    def remember(rule_type: RuleType) -> RuleType:
        rule = rule_type()
        for module_type in module_types:
            _RULES[module_type] = rule
        return rule_type

    return remember


def refuse_type(module_type: type[nn.Module], reason: str, fix: str) -> None:
    """Record that a layer type (and what derives from it) can have no rule, and why."""
    _REFUSALS[module_type] = Refusal(reason, fix)


def registered() -> Mapping[type[nn.Module], LayerRule[Any]]:
    """Every layer type that has a rule."""
    return MappingProxyType(_RULES)


def refused() -> Mapping[type[nn.Module], Refusal]:
    """Every layer type that is refused for a stated reason."""
    return MappingProxyType(_REFUSALS)


def _redefined(module_type: type[nn.Module], base: type[nn.Module]) -> set[str]:
    """Return what classes between `module_type` and `base` redefine of `base`'s behaviour."""
    # A property named like an attribute (parametrised weights) replaces that attribute.
    state = {name for cls in base.__mro__ for name in vars(cls).get("__annotations__", {})}
    between = module_type.__mro__[: module_type.__mro__.index(base)]
    return {
        name
        for cls in between
        for name in vars(cls)
        if (hasattr(base, name) or name in state)
        and name not in _HARMLESS
        and name not in _BORN_WITH
    }


def lookup(module_type: type[nn.Module]) -> LayerRule[Any] | None:
    """Return the rule that holds for a type, its own or one it inherits unchanged."""
    for base in module_type.__mro__:
        if base in _RULES:
            return None if _redefined(module_type, base) else _RULES[base]
    return None


def _refusal(module_type: type[nn.Module]) -> Refusal | None:
    return next((_REFUSALS[base] for base in module_type.__mro__ if base in _REFUSALS), None)


def is_known(module: nn.Module) -> bool:
    """Whether the module is judged as a whole, by a rule or by a stated refusal."""
    kind = type(module)
    return lookup(kind) is not None or _refusal(kind) is not None


def rule_for(module: nn.Module, path: str) -> LayerRule[Any]:
    """Return the rule of a module, or raise with the reason and the remedy.

    Raises
    ------
    UnsupportedModelError
        If the layer has no rule, mixes records, or was altered in a way that
        the rule does not cover.
    """
    kind = type(module)
    refusal = _refusal(kind)
    if refusal is not None:
        raise UnsupportedModelError(f'{kind.__name__} at "{path}" {refusal.reason} {refusal.fix}')
    rule = lookup(kind)
    if rule is None:
        _no_rule(module, path)
    if "forward" in vars(module):
        raise UnsupportedModelError(
            f'{kind.__name__} at "{path}" had its forward replaced on the instance, so its rule '
            "says nothing about it. Make it a module type of its own and register a rule."
        )
    if hooks := hooks_of(module):
        raise UnsupportedModelError(
            f'{kind.__name__} at "{path}" carries a hook ({_name(hooks[0])}), which may change '
            "what the layer computes or sends back. Remove the hook, or certify before you "
            "attach it."
        )
    learnt = {name for name, value in module.named_parameters() if value.requires_grad}
    unknown = learnt - set(rule.parameters)
    if unknown or is_parametrized(module):
        raise UnsupportedModelError(
            f'{kind.__name__} at "{path}" has parameters of which its rule knows nothing '
            f"({', '.join(sorted(unknown)) or 'parametrised'}), so their gradient has no bound. A "
            "reparametrised layer (weight norm, spectral norm) needs a rule for the effective "
            "weight: use noisewise.nn.SpectralLinear, SpectralConv2d or StandardisedConv2d."
        )
    return rule


def hooks_of(module: nn.Module) -> list[Any]:
    """Return whatever may change what a module, or every module, computes or sends back."""
    kinds = "forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks"
    return [
        hook
        for kind in kinds
        for held in (getattr(module, f"_{kind}"), getattr(of_all_modules, f"_global_{kind}"))
        for hook in held.values()
    ]


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _no_rule(module: nn.Module, path: str) -> NoReturn:
    kind = type(module)
    base = next((base for base in kind.__mro__ if base in _RULES), None)
    if base is not None:
        changed = ", ".join(sorted(_redefined(kind, base)))
        why = (
            f"derives from {base.__name__} but redefines {changed}, so the rule of "
            f"{base.__name__} may not hold for it."
        )
        fix = f"Use {base.__name__} itself"
    else:
        why = "has no rule, so nothing is known about its output or its gradients."
        names = {known.__name__: known for known in _RULES}
        close = difflib.get_close_matches(kind.__name__, names, n=1, cutoff=0.5)
        fix = f"The nearest supported layer is {close[0]}: use that" if close else "Replace it"
    raise UnsupportedModelError(
        f'{kind.__name__} at "{path}" {why} {fix}, or prove its bounds and register them: '
        f"@noisewise.bounds.register({kind.__name__}) above a LayerRule subclass that defines "
        "lipschitz, output_norm and parameter_factors."
    )
