"""The path that a run takes through the user's code, as one number.

A proof holds for the operations that were watched. Later runs of the same shapes are bound to it
by their path: every torch function in order, with its operands, their shapes, and all numbers,
words and flags among the arguments. An operand is an input, an earlier result, a parameter, a
buffer, or a tensor from outside that is the very one of the watched run, unchanged. What a path
leaves out cannot change which entries meet: the values of tensors, and a float that meets a tensor
(no rule is shown one, and nothing that one has touched counts as constant).

Code that runs within the backward pass (hooks, autograd functions of one's own) can exchange
tensors without calling torch at all. A run with such code matches no path: it is watched.
"""

from __future__ import annotations

import enum
import types
import weakref
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch._C import _len_torch_dispatch_stack as _modes_below
from torch._C._autograd import _top_saved_tensors_default_hooks as _saving
from torch.nn import Parameter

from noisewise.separation.content import Content
from noisewise.separation.draws import Draws
from noisewise.separation.kernels import replaced
from noisewise.separation.origin import is_torchs, place
from noisewise.separation.torchs import own

__all__ = ["Outside", "Path"]

_PLAIN = (
    str,
    bytes,
    type(None),
    type(Ellipsis),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    enum.Enum,
    type,
    types.BuiltinFunctionType,
)
#: Of these hash and equality are Python's or torch's.
_EXACT = frozenset(kind for kind in _PLAIN if kind not in (enum.Enum, type)) | {type}
_TENSORS = frozenset((Tensor, Parameter))
_NOTED = (Tensor, np.ndarray, np.generic, *_PLAIN)
_CALLED = (types.FunctionType, types.MethodType)
_WHOLE = slice(None)
#: Stand for values in a description, and are equal to no value.
_YES, _NO, _FLOAT, _NAMED = object(), object(), object(), object()
#: What a property of a tensor is, and the kinds of facts that say nothing of its values.
_Getter = type(Tensor.shape.__get__)  # type: ignore[attr-defined]
_SAID_OF_ALL = frozenset((torch.Size, torch.dtype, torch.device, torch.layout))
#: Makes a constant of the number that is assigned.
_ASSIGNMENT = Tensor.__setitem__
#: What the path itself asks of tensors is no part of the run.
_quietly = torch._C.DisableTorchFunction
#: How tensors without code of their own answer a call.
_NO_CODE: Any = torch._C._disabled_torch_function_impl
_PLAIN_CODE: Any = vars(Tensor)["__torch_function__"].__func__
_Memory: Any = UntypedStorage
_let_go: Any = _Memory._free_weak_ref
#: Gives a tensor other memory, by assignment.
_EXCHANGE = vars(torch._C.TensorBase)["data"].__set__
#: Ways to have code run within the backward pass.
_RETURNING = frozenset(
    (
        Tensor.register_hook,
        Tensor.register_post_accumulate_grad_hook,
        vars(torch._C.TensorBase)["grad_fn"].__get__,
        vars(torch._C.TensorBase)["_backward_hooks"].__get__,
        vars(torch._C.TensorBase)["_backward_hooks"].__set__,
    )
)


#: Kinds of functions that those are.
_OF_TENSORS = frozenset(map(type, (*_RETURNING, _EXCHANGE)))


class Outside:
    """Tensors that watched runs read, though no operation in them had made them.

    They are known by identity, and must not have changed.
    """

    def __init__(self) -> None:
        self._held: dict[int, tuple[Any, Content, int]] = {}
        self._count = 0
        #: Ways to calls that draw, and whether the one before had ended where they began.
        self.drawing: dict[int, bool] = {}

    def number(self, tensor: Tensor, learning: bool) -> int | None:
        """Which of them it is; None if it is none, or has changed since."""
        found = self._held.get(id(tensor))
        if found is not None and found[0]() is tensor and found[1].is_of(tensor):
            return found[2]
        if not learning:
            return None
        self._count += 1  # never one that had another content
        self._held[id(tensor)] = (weakref.ref(tensor), Content(tensor), self._count)
        return self._count


class Path:
    """Follows one run; `digest` is equal for runs that did the same.

    Parameters
    ----------
    known : container of int
        Parameters and buffers, by identity.
    outside : Outside
        Shared by the runs that may be bound to each other.
    learning : bool
        The run is watched: what it reads from outside is judged there.

    Attributes
    ----------
    floats : int
        The same of the floats that the digest leaves out.
    failing : Any
        The way to the last call that raised, and the call itself.
    prefixes : set, optional
        The ways to all calls, and from them, if they are asked for.
    drawing : dict of int to bool
        As of `Outside`; nothing, if it does not matter whether somebody sets the generator.
    made : callable, optional
        Whether memory was made in this run, or holds records: what the watch knows of it.
    recomputes : bool
        Whether the program's own code may run in the backward pass.
    unfollowed : str
        Why the digest does not say all, so that the run must be watched whatever its digest is;
        empty if it does.
    """

    __slots__ = (
        "_below",
        "_count",
        "_draws",
        "_known",
        "_learning",
        "_memory",
        "_numbers",
        "_outside",
        "_writes",
        "digest",
        "drawing",
        "failing",
        "floats",
        "learning",
        "made",
        "prefixes",
        "recomputes",
        "unfollowed",
    )

    def __init__(
        self,
        known: Container[int] = (),
        outside: Outside | None = None,
        learning: bool = False,
    ) -> None:
        self.digest = 0
        self.floats = 0
        self.unfollowed = ""
        self.recomputes = False
        self.failing: Any = None
        self.prefixes: set[Any] | None = None
        self.made: Callable[[Tensor], Any] | None = None
        self._known = known
        self._outside = Outside() if outside is None else outside
        self._learning = self.learning = learning
        self.drawing = self._outside.drawing
        self._draws = Draws()
        self._count = 0
        self._below = 0
        #: By identity: a reference to the tensor, its number, its version and address at that time.
        self._numbers: dict[int, tuple[Any, int, int, int]] = {}
        #: Weak references to memory, as torch gives them, and the numbers of tensors in it.
        self._memory: list[tuple[int, int]] = []
        #: How often the run wrote to buffers.
        self._writes: dict[Any, int] = {}

    def __del__(self) -> None:
        for held, _ in self._memory:
            _let_go(held)

    def begin(self) -> None:
        """A part of the run begins, with the dispatch modes that are there now."""
        self._below = _modes_below()
        if self.learning or self.drawing:  # else nobody asks where the generator was
            with _quietly():
                self._draws.expect()
        if others := replaced():
            self.lose(f"the kernel of {min(others)} was replaced through torch.library")

    def name(self, tensor: Tensor) -> None:
        """Give a tensor the next number."""
        with _quietly():
            self._name(tensor)

    def _name(self, tensor: Tensor) -> None:
        self._count = number = self._count + 1
        try:
            version, address = tensor._version, tensor.data_ptr()
            # Of its memory, too: somebody may hold that by an object which torch never showed.
            memory: Any = tensor.untyped_storage()
            self._memory.append((memory._weak_ref(), number))
        except (RuntimeError, NotImplementedError):
            version, address = _state(tensor)
        self._numbers[id(tensor)] = (weakref.ref(tensor), number, version, address)

    def turn_back(self) -> None:
        """The backward pass begins: what it reads from outside must have been read before."""
        self._learning = False

    def alive(self) -> list[tuple[int, int]]:
        """Memory of inputs and results that somebody still holds, by its key, and numbers."""
        alive = []
        for held, number in self._memory:
            if _Memory._expired(held):
                _let_go(held)
            else:
                alive.append((held, number))
        self._memory = alive
        return alive

    def hand_on(self, lasting: Container[int]) -> list[int]:
        """Give away the references to memory that is alive, but for what may stay."""
        alive, self._memory = self.alive(), []
        given = []
        for held, number in alive:
            if number in lasting:
                _let_go(held)
            else:
                given.append(held)
        return given

    def wrote(self, buffers: Iterable[tuple[Tensor | None, Tensor | None, int]]) -> None:
        """Note what a part of the run wrote to buffers: as they were, as they are, versions."""
        for index, (before, now, version) in enumerate(buffers):
            if now is before:
                times = 0 if now is None else _state(now)[0] - version
                if times:
                    self._writes[index] = self._writes.get(index, 0) + times
            else:
                found = None if now is None else self._numbers.get(id(now))
                self._writes[index, "exchanged"] = 0 if found is None else found[1]

    def begin_draw(self) -> int | None:
        """A call begins that may draw; give what is returned to `end_draw` when it is over."""
        with _quietly():
            if not self.learning:
                if self.drawing[self.digest]:
                    self.require_no_setting()
                else:
                    self._draws.expect()
            else:
                self._draws.begin(place)
                if self._draws.were_set:  # by what no call shows: the watch knows better
                    self.drawing[self.digest] = False
                    self._draws = Draws()
                    self._draws.expect()
        return self.digest

    def end_draw(self, way: int) -> None:
        """The call is over."""
        with _quietly():
            if self.learning and self._draws.moved:
                self.drawing.setdefault(way, True)
            self._draws.expect()

    def require_no_setting(self) -> None:
        """Here the generator must be where the last draw left it."""
        if self.learning or not self.drawing:
            return
        with _quietly():
            self._draws.begin(place)
        if self._draws.were_set:
            self.lose("torch's generator was set")

    def end(self) -> None:
        """The run is over."""
        if self._writes and self.digest not in (0, -1):
            self.digest = hash((self.digest, *self._writes.items()))
        self._writes = {}

    def hand_over(self, values: Any) -> None:
        """Note which values leave one part of the run for the next.

        Of an object only its kind is noted: tensors in it are known where they are used.
        """
        self._look_below()
        seen: list[Any] = [self.digest]
        with _quietly():
            for value in values:
                if isinstance(value, Tensor):
                    self.require_plain((type(value),))
                if type(value).__module__ == "builtins" or isinstance(value, _NOTED):
                    self._describe((value,), seen, exact=True)
                else:
                    seen.append(type(value))
        self.digest = hash(tuple(seen))

    def called(self, kind: Any, unseen: str) -> None:
        """Something else than a torch function was called; `unseen`: what it may do unseen."""
        self.recomputes = True
        self.digest = hash((self.digest, kind))
        if unseen:
            self.lose(f"{kind.__name__} {unseen}")

    @property
    def followed(self) -> bool:
        """Whether the digest says all."""
        return not self.unfollowed

    def lose(self, reason: str) -> None:
        """Something happened that the digest cannot tell."""
        self.unfollowed = self.unfollowed or f"{reason} ({place()})"

    def note(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One call of a torch function."""
        if function.__class__ is _Getter and result.__class__ in _SAID_OF_ALL:
            # Shape, type or device: whoever asks, and of which tensor, does nothing to it.
            self.digest = hash((self.digest, function, result))
            return
        with _quietly():
            if _modes_below() != self._below or _saving(False) is not None:
                self._look_below()
            known = own(function)
            if known is None:
                # What it does is done below the mode that notes the path.
                name = getattr(function, "__qualname__", type(function).__qualname__)
                self.lose(f"{name} is called as if it were torch's, and is not, or not all of it")
            elif known.times:
                self.digest = hash((self.digest, known.times))
            self._record(function, args, kwargs, result)
            if function.__class__ in _OF_TENSORS:
                if function in _RETURNING:
                    self.lose("a hook on a tensor's gradient")
                elif function == _EXCHANGE:
                    self._name(args[0])

    def require_plain(self, types: Iterable[type]) -> None:
        """Types of tensors met a call: what their own code does is done below the mode."""
        for kind in types:
            if kind is not Tensor and kind is not Parameter:
                code = kind.__torch_function__  # type: ignore[attr-defined]
                if code is not _NO_CODE and getattr(code, "__func__", None) is not _PLAIN_CODE:
                    self.lose(f"a tensor of type {kind.__name__}, with operations of its own")

    def record(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        """One call that does what its arguments say."""
        with _quietly():
            self._record(function, args, kwargs, result)

    def _record(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        seen = self._call(function, args, kwargs)
        if self.prefixes is not None:
            self.prefixes.add((hash(tuple(seen)), self.floats))
        if result.__class__ is Tensor or isinstance(result, Tensor):
            seen.append(result.dtype)  # settings choose it, too: autocast, the default type
            self._name(result)
        elif isinstance(result, (tuple, list)):
            for part in result:
                if isinstance(part, Tensor):
                    self._name(part)
        self.digest = hash(tuple(seen))
        if self.prefixes is not None:
            self.prefixes.add(self.digest)

    def _look_below(self) -> None:
        if _modes_below() != self._below:
            # What a mode does with an operation is done below the mode that notes the path.
            self.lose("a dispatch mode of the program's own")
        hooks = _saving(False)
        if hooks is not None and not all(map(_is_torchs_code, hooks)):
            self.lose("hooks on saved tensors")

    def fail(self, function: Any, args: Any, kwargs: Any, error: BaseException) -> None:
        """A call of a torch function that raised; whoever goes on from here is off every path."""
        if type(error).__module__ == "torch.utils.checkpoint":
            return  # that is how it ends a recomputation
        with _quietly():
            self.failing = (hash(tuple(self._call(function, args, kwargs))), self.floats)
        # Said of the error itself: whoever kept it would keep its frames, and the records in them.
        error._noisewise_path = id(self)  # type: ignore[attr-defined]
        self.digest = hash((self.failing, "raised"))

    def passes(self, other: Path) -> bool:
        """Whether another run, ended earlier perhaps, went the same way."""
        ended = other.digest == 0 or other.digest in (self.prefixes or ())
        return ended or other.digest == self.digest

    def explains(self, error: BaseException | None) -> bool:
        """Whether a function of torch raised this error, or one that it was made of."""
        while error is not None:
            if getattr(error, "_noisewise_path", None) == id(self):
                return True
            error = error.__cause__ or error.__context__
        return False

    def _call(self, function: Any, args: Any, kwargs: Any) -> list[Any]:
        seen: list[Any] = [self.digest, function]
        exact = function is _ASSIGNMENT or not (args and isinstance(args[0], Tensor))
        self._describe(args, seen, exact)
        if kwargs:
            seen.append(_NAMED)
            for key, value in kwargs.items():
                seen.append(key)
                self._describe((value,), seen, exact)
        return seen

    def _describe(self, values: Any, seen: list[Any], exact: bool) -> None:
        """Say what values are; two ways to call a function never have the same description.

        So what has parts is one entry: flip([0, 2]) is not flip(1, 0, 2).
        """
        for value in values:
            if value.__class__ in _TENSORS or isinstance(value, Tensor):
                found = self._numbers.get(id(value))
                if found is not None and found[0]() is value:
                    try:
                        version, address = value._version, value.data_ptr()
                    except RuntimeError:
                        version, address = _state(value)
                    if version == found[2] and address == found[3]:
                        seen.append(found[1])
                    else:
                        seen.append(self._changed(found, version, address))
                elif id(value) in self._known:
                    seen.append(("known", id(value)))
                else:
                    seen.append(self._stranger(value))
                seen.append(value.shape)
                seen.append(value.requires_grad)
            elif isinstance(value, bool):
                seen.append(_YES if value else _NO)
            elif value.__class__ is int:
                # -1 and -2 have the same hash, and are the commonest axes; so have numbers that
                # are 2^61 - 1 apart.
                small = 2 * value if value >= 0 else -2 * value + 1
                seen.append(small if small < 2**60 else (int, str(value)))
            elif isinstance(value, float):
                if exact:
                    seen.append((float, float.hex(value)))
                else:
                    seen.append(_FLOAT)
                    self.floats = hash((self.floats, float.hex(value)))
            elif isinstance(value, (tuple, list)):
                # As torch reads them, whatever a type of one's own says of itself.
                kind: Any = tuple if isinstance(value, tuple) else list
                plain = kind.__getitem__(value, _WHOLE)
                parts: list[Any] = [kind]  # h[[0, 1]] takes rows, h[(0, 1)] an entry
                self._describe(plain, parts, True)
                seen.append(tuple(parts))
            elif value.__class__ in _EXACT:
                seen.append(value)
            elif isinstance(value, _PLAIN):
                # Words and types of one's own may say that they are equal.
                said = str.__str__(value) if isinstance(value, str) else id(value)
                seen.append((type(value), said))
            else:
                parts = [type(value)]
                self._describe_rare(value, parts)
                seen.append(tuple(parts))

    def _stranger(self, tensor: Tensor) -> Any:
        """A tensor that this run has not made, and that is no parameter or buffer."""
        if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            self.lose("torch.func runs a function of the program's own")
        elif self.made is not None and self.made(tensor) is not None:
            self.lose("a tensor that torch made in this run, and returned from no function")
        if self.unfollowed:  # the run is watched in any case, and the same if it does the same
            self._name(tensor)
            return "outside", self._numbers[id(tensor)][1]
        number = self._outside.number(tensor, self._learning)
        if number is None:
            self.lose("a tensor that this run has not made, and that is not a parameter or buffer")
        else:
            # Known from now on: it is compared once a run.
            self._numbers[id(tensor)] = (weakref.ref(tensor), -number, *_state(tensor))
        return "outside", number

    def _changed(self, found: tuple[Any, int, int, int], version: int, address: int) -> Any:
        """A tensor that was written since it was numbered, or has other memory."""
        if address != found[3]:
            self.lose("a tensor whose memory was exchanged")
        # Writes that are on the path are as many in every run; others are not.
        return found[1], version - found[2]

    def _describe_rare(self, value: Any, seen: list[Any]) -> None:
        if isinstance(value, (slice, range)):
            self._describe((value.start, value.stop, value.step), seen, True)
        elif isinstance(value, (np.ndarray, np.generic)):
            array = np.array(value, subok=False)
            seen.extend((array.dtype.str, array.shape, array.tobytes()))
            if array.dtype == object:
                self.lose("an array of objects")
        elif isinstance(value, complex):
            seen.append(complex.__repr__(value))
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self._describe((key, item), seen, True)
        elif isinstance(value, _CALLED):
            if not (value.__module__ or "").startswith(("torch.", "noisewise.")):
                # What it does is done below the mode that notes the path.
                self.lose(f"a function of one's own, {value.__qualname__}, is handed to torch")
            seen.append(value.__code__ if hasattr(value, "__code__") else _code_of(value))
        elif not isinstance(value, (torch.Generator, torch._C._FunctionBase)):
            # It could stand for any number.
            self.lose(f"an argument of type {type(value).__name__}")


def _state(tensor: Tensor) -> tuple[int, int]:
    """How often torch counted a write, and where the memory is."""
    try:
        return tensor._version, tensor.data_ptr()
    except RuntimeError:  # made in inference mode, or within torch.func
        return 0, 0


def _is_torchs_code(function: Any) -> bool:
    """Whether the code of a function is torch's, whatever it was handed (recomputation)."""
    code = getattr(function, "__code__", None)
    return code is not None and is_torchs(code.co_filename)


def _code_of(method: Callable[..., Any]) -> Any:
    return getattr(getattr(method, "__func__", None), "__code__", type(method))
