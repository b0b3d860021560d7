"""Export of models to ordinary torch modules."""

from noisewise.nn.plain import layers as layers  # registers the plain form of every layer
from noisewise.nn.plain.export import Export, exportable, register_plain, to_plain, traced

__all__ = ["Export", "exportable", "register_plain", "to_plain", "traced"]
