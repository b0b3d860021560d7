"""RNN, LSTM and GRU layers, step by step, with the weights of torch's own modules.

The input's projection is one linear layer at T positions. The hidden state's projection is
used at every step: a zero tensor added to it collects the cotangent of every step, and the
pairs (previous state, cotangent) make one contraction with T positions. Cells that a model calls
in a loop of its own are two linear layers each; their uses are joined over the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from noisewise.gradients.contractions import LinearContraction, Target
from noisewise.gradients.operations.dense import tapped_linear
from noisewise.gradients.operations.registry import (
    UnsupportedUseError,
    handles,
    layout_of_use,
    place,
)
from noisewise.gradients.tape import Tape
from noisewise.gradients.unnoted import OwnFunction, unnoted
from noisewise.separation import RefusedError

__all__ = ["is_plain_recurrent", "run_recurrent"]

RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)
#: What a type of one's own may define and still compute what torch's does.
_HARMLESS = {"extra_repr", "reset_parameters"}
_CALLS = {"__call__", "_call_impl", "__getattr__", "__getattribute__"}


def is_plain_recurrent(module: nn.Module) -> bool:
    """Whether a module computes just what torch's own recurrent layer does.

    A subclass with a forward of its own, say, is run as it is written.
    """
    kinds = type(module).__mro__
    base = next((kind for kind in kinds if kind in RECURRENT), None)
    if base is None:
        return False
    own = {name for kind in kinds[: kinds.index(base)] for name in vars(kind)}
    theirs = {name for kind in (base, nn.RNNBase) for name in vars(kind) if name[:2] != "__"}
    return not own & ((theirs | _CALLS) - _HARMLESS)


class _States(OwnFunction):
    """Zeros (rows, T, width) whose cotangent is paired with the states that were seen."""

    @staticmethod
    def forward(
        ctx: Any,
        anchor: Tensor,
        shape: tuple[int, ...],
        states: list[Tensor],
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> Tensor:
        ctx.states, ctx.tape, ctx.targets = states, tape, targets
        return anchor.new_zeros(shape)

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        states = torch.stack(ctx.states, 1)
        each = states.shape[0] // ctx.tape.records
        contraction = LinearContraction.of(states, cotangents[0], each, *ctx.targets)
        ctx.tape.arrive(contraction)
        return None, None, None, None, None


class _LongShortTerm(OwnFunction):
    """All steps of an LSTM, from what enters them; its backward pass is written out.

    Autograd would keep and visit a dozen small operations for every step.
    """

    @staticmethod
    def forward(
        ctx: Any,
        entering: Tensor,
        state: Tensor,
        memory: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        tape: Tape,
        targets: tuple[Target | None, Target | None],
    ) -> tuple[Tensor, Tensor]:
        kind = entering.dtype
        weight, bias = weight.to(kind), None if bias is None else bias.to(kind)
        states, memories, gates = [state.to(kind)], [memory.to(kind)], []
        for projected in entering.unbind(1):
            hidden = nn.functional.linear(states[-1], weight, bias) + projected
            i, f, g, o = hidden.chunk(4, -1)
            i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
            memories.append(torch.addcmul(f * memories[-1], i, g))
            states.append(o * torch.tanh(memories[-1]))
            gates.append((i, f, g, o))
        ctx.save_for_backward(weight, *(torch.stack(part, 1) for part in zip(*gates, strict=True)))
        ctx.states, ctx.memories = torch.stack(states, 1), torch.stack(memories, 1)
        ctx.tape, ctx.targets, ctx.kinds = tape, targets, (state.dtype, memory.dtype)
        return ctx.states[:, 1:].clone(), memories[-1].clone()

    @staticmethod
    @unnoted
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        weight, i, f, g, o = ctx.saved_tensors
        of_states, of_memory = cotangents
        shown = torch.tanh(ctx.memories[:, 1:])
        through = o * (1 - shown.square())
        by_memory = torch.stack(
            [g * i * (1 - i), ctx.memories[:, :-1] * f * (1 - f), i * (1 - g.square())], 2
        )
        by_state = (shown * o * (1 - o)).unbind(1)
        arriving, passing, kept = of_states.unbind(1), through.unbind(1), f.unbind(1)
        into_gates = by_memory.unbind(1)
        state, found = torch.zeros_like(of_memory), []
        for t in reversed(range(len(arriving))):
            state = state + arriving[t]
            memory = torch.addcmul(of_memory, state, passing[t])
            both = [(memory.unsqueeze(1) * into_gates[t]).flatten(1), state * by_state[t]]
            found.append(torch.cat(both, 1))
            of_memory = memory * kept[t]
            state = found[-1] @ weight
        entering = torch.stack(found[::-1], 1)
        if any(target is not None for target in ctx.targets):
            seen = ctx.states[:, :-1]
            each = seen.shape[0] // ctx.tape.records
            ctx.tape.arrive(LinearContraction.of(seen, entering, each, *ctx.targets))
        first, second = ctx.kinds
        return entering, state.to(first), of_memory.to(second), None, None, None, None


def run_recurrent(tape: Tape, path: str, module: Any, args: tuple[Any, ...]) -> Any:
    """What the module's forward returns, with its gradients on the tape."""
    x, state = args[0], args[1] if len(args) > 1 else None
    if not isinstance(x, Tensor) or x.dim() != 3:
        raise RefusedError(
            f'{type(module).__name__} at "{path}" needs a padded batch (batch, time, features), '
            "not a packed sequence",
            "Pad it, and take each record's state at its own end, states[torch.arange(len(x)), "
            "lengths - 1], or mask the loss.",
        )
    if module.proj_size:
        raise RefusedError(
            f'{type(module).__name__} at "{path}" with proj_size is not taken apart',
            "Use a Linear layer after an LSTM without projection.",
        )
    tape.once = f'{type(module).__name__} at "{path}"'
    x = x if module.batch_first else x.transpose(0, 1)
    names = [target.name for p in module.parameters() if (target := tape.target(p)) is not None]
    layout = tape.layout(place(tape, type(module).__name__), x, -1, names)
    if layout.constant or (not layout.is_first and layout.order is not None):
        raise RefusedError(
            f'{type(module).__name__} at "{path}" gets records in an order that is not taken apart',
            "Give it (batch, time, features), or (time, batch, features) with batch_first=False.",
        )
    directions = 2 if module.bidirectional else 1
    finals: list[tuple[Tensor, ...]] = []
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            index = layer * directions + direction
            start = _initial(module, state, index, x)
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            sequence = x.flip(1) if direction else x
            output, final = _one_way(tape, module, suffix, sequence, start)
            outputs.append(output.flip(1) if direction else output)
            finals.append(final)
        x = torch.cat(outputs, -1) if directions == 2 else outputs[0]
        if module.dropout and layer < module.num_layers - 1:
            x = nn.functional.dropout(x, module.dropout, module.training)
    last = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    result = x if module.batch_first else x.transpose(0, 1)
    return result, last if isinstance(module, nn.LSTM) else last[0]


def _initial(module: Any, state: Any, index: int, x: Tensor) -> tuple[Tensor, ...]:
    if state is None:
        zeros = x.new_zeros(x.shape[0], module.hidden_size)
        return (zeros, zeros) if isinstance(module, nn.LSTM) else (zeros,)
    parts = state if isinstance(module, nn.LSTM) else (state,)
    return tuple(part[index] for part in parts)


def _one_way(
    tape: Tape, module: Any, suffix: str, x: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    def parameter(name: str) -> Tensor | None:
        found: Tensor | None = getattr(module, name + suffix, None) if module.bias else None
        return found

    weight_in, weight_state = (getattr(module, n + suffix) for n in ("weight_ih", "weight_hh"))
    bias_in, bias_state = parameter("bias_ih"), parameter("bias_hh")
    entering = tapped_linear(
        tape, x, weight_in, bias_in, (tape.target(weight_in), tape.target(bias_in))
    )
    targets = (tape.target(weight_state), tape.target(bias_state))
    if isinstance(module, nn.LSTM):
        tape.use(*targets)
        found = _LongShortTerm.apply(  # type: ignore[no-untyped-call]
            entering, *state, weight_state, bias_state, tape, targets
        )
        return found[0], (found[0][:, -1], found[1])
    seen: list[Tensor] = []
    collector = None
    if any(target is not None for target in targets):
        tape.use(*targets)
        anchor = weight_state if weight_state.requires_grad else bias_state
        shape = (x.shape[0], x.shape[1], weight_state.shape[0])
        collector = _States.apply(anchor, shape, seen, tape, targets)  # type: ignore[no-untyped-call]
    fixed = weight_state.detach()
    fixed_bias = None if bias_state is None else bias_state.detach()
    outputs = []
    cell = _cell_of(module)
    added = None if collector is None else collector.unbind(1)
    for t, projected in enumerate(entering.unbind(1)):
        seen.append(state[0].detach())
        hidden = nn.functional.linear(state[0], fixed, fixed_bias)
        if added is not None:
            hidden = hidden + added[t]
        state = cell(projected, hidden, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1), state


Cell = Callable[[Tensor, Tensor, tuple[Tensor, ...]], tuple[Tensor, ...]]


def _lstm(entering: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    i, f, g, o = (entering + hidden).chunk(4, -1)
    memory = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory


def _gru(entering: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (reset_in, update_in, new_in) = entering.chunk(3, -1)
    (reset_h, update_h, new_h) = hidden.chunk(3, -1)
    reset, update = torch.sigmoid(reset_in + reset_h), torch.sigmoid(update_in + update_h)
    new = torch.tanh(new_in + reset * new_h)
    return ((1 - update) * new + update * state[0],)


def _tanh(entering: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.tanh(entering + hidden),)


def _relu(entering: Tensor, hidden: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (torch.relu(entering + hidden),)


def _cell_of(module: Any) -> Cell:
    if isinstance(module, nn.GRU):
        return _gru
    return _relu if module.nonlinearity == "relu" else _tanh


_CELLS: dict[Any, Cell] = {
    torch.lstm_cell: _lstm,
    torch.gru_cell: _gru,
    torch.rnn_tanh_cell: _tanh,
    torch.rnn_relu_cell: _relu,
}


@handles(*_CELLS)
def one_step(tape: Tape, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A cell as torch.nn.LSTMCell, GRUCell and RNNCell call it."""
    return _one_step(tape, function, *args, **kwargs)


def _one_step(
    tape: Tape,
    function: Any,
    input: Tensor,
    hx: Any,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> Any:
    state = (hx,) if isinstance(hx, Tensor) else tuple(hx)
    if input.dim() != 2 or any(tape.target(part) is not None for part in (input, *state)):
        raise UnsupportedUseError
    # Inputs or the first state may hold no record, but are one row for every record.
    operands = [part[:, :1] for part in (input, *state)]
    rows = layout_of_use(tape, "cell", operands, 1, w_ih, w_hh, b_ih, b_hh)

    def projected(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        targets = (tape.target(weight), tape.target(bias))
        return rows.back(tapped_linear(tape, rows.first(x), weight, bias, targets), x)

    found = _CELLS[function](projected(input, w_ih, b_ih), projected(state[0], w_hh, b_hh), state)
    return found if function is torch.lstm_cell else found[0]
