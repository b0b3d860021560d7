"""An extension of griffe: several parameters on one line keep types and defaults of their own.

Of ``low, high : float`` griffe would show the default of `low` for both.
"""

from typing import Any

import griffe


class OwnDefaults(griffe.Extension):
    """Every parameter of a docstring is shown with what the signature says of it."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Walk over all objects of the package."""
        # Docstrings are read once, and dataclasses have no parameters before this.
        griffe.DataclassesExtension().on_package(pkg=pkg)
        correct(pkg)


def correct(item: griffe.Object) -> None:
    """Correct the docstring of an object and of what it holds."""
    parameters = getattr(item, "parameters", None)
    if item.docstring is not None and parameters:
        annotations = [parameter.annotation for parameter in parameters]
        for section in item.docstring.parsed:
            if section.kind is not griffe.DocstringSectionKind.parameters:
                continue
            for told in section.value:
                if told.name not in parameters:
                    continue
                own = parameters[told.name]
                told.value = own.default
                if any(told.annotation is annotation for annotation in annotations):
                    told.annotation = own.annotation
    for member in item.members.values():
        if not member.is_alias:
            correct(member)
