"""Several optimizers that step together, as one."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["SeveralOptimizers"]


class SeveralOptimizers(torch.optim.Optimizer):
    """Optimizers of different parameters of one model, for `make_private`, which takes one.

    A private step gives all parameters their noisy gradients at once; every optimizer then takes
    its step with its own. Schedules are made for the single optimizers, as ever.

    Parameters
    ----------
    *optimizers : torch.optim.Optimizer
        At least one; no parameter in two of them.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 2))
    >>> both = SeveralOptimizers(
    ...     torch.optim.SGD(model[0].parameters(), lr=0.1),
    ...     torch.optim.AdamW(model[1].parameters(), lr=0.01),
    ... )
    >>> [group["lr"] for group in both.param_groups]
    [0.1, 0.01]
    """

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        if not optimizers:
            raise ValueError("SeveralOptimizers needs at least one optimizer")
        parameters = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        if len({id(parameter) for parameter in parameters}) != len(parameters):
            raise ValueError("a parameter is in two of the optimizers; it would be updated twice")
        super().__init__(parameters, {})
        self.optimizers = optimizers
        self._share()

    def _share(self) -> None:
        """Show the groups of the optimizers themselves, so that schedules are seen."""
        self.param_groups = [group for one in self.optimizers for group in one.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step with each of them."""
        if closure is not None:
            raise ValueError("a closure would be called once for each of the optimizers")
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each of them."""
        return {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of each of them."""
        held = state_dict["optimizers"]
        if len(held) != len(self.optimizers):
            raise ValueError(
                f"the state is of {len(held)} optimizers, but there are {len(self.optimizers)}"
            )
        for optimizer, state in zip(self.optimizers, held, strict=True):
            optimizer.load_state_dict(state)
        self._share()
