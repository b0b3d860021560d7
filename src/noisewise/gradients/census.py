"""The modules of a model, listed once: asking the model takes longer than a small step."""

from __future__ import annotations

from operator import is_

from torch import nn

__all__ = ["Census"]


class Census:
    """All modules of a model, which may be added to, removed and exchanged.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(2, 3))
    >>> census = Census(model)
    >>> model.append(nn.ReLU())[1] in census.modules()
    True
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._list()

    def _list(self) -> None:
        self._modules = list(self._model.modules())
        self._children = [(module, tuple(module._modules.values())) for module in self._modules]

    def modules(self) -> list[nn.Module]:
        """All modules as they are now, each once."""
        for module, held in self._children:
            now = module._modules
            if len(now) != len(held) or not all(map(is_, now.values(), held)):
                self._list()
                break
        return self._modules
