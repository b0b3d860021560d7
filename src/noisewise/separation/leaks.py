"""The doors through which values leave torch without an operation: a function mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from noisewise.separation.origin import place
from noisewise.separation.registry import words
from noisewise.separation.shadow import Origin, storage_key

if TYPE_CHECKING:
    from noisewise.separation.watch import Watch

__all__ = ["Leaks", "tensors_only"]


class Leaks(TorchFunctionMode):
    """Sees the values of records leave torch without an operation.

    What a function on records returns is a tensor, or a fact that holds for every record alike
    (`FACTS`). Anything else may be a value.
    """

    #: What is said of a tensor without looking at its values. Those of the last line end in an
    #: operation, where they are followed.
    FACTS = words(
        "__get__ __set__ size dim stride numel nelement element_size storage_offset is_contiguous",
        "is_floating_point is_complex is_signed is_set_to is_same_size ndimension get_device type",
        "__len__ __hash__ __iter__ register_hook retain_grad is_pinned is_shared has_names is_conj",
        "is_inference __dir__ _is_view is_neg is_tensor is_storage result_type can_cast",
        "promote_types __dlpack_device__ dim_order is_distributed _is_zerotensor grad __delattr__",
        "_has_same_storage_numel",
        "register_post_accumulate_grad_hook has_torch_function is_coalesced nested_size",
        "item allclose equal is_nonzero __contains__ __bool__ __int__ __float__ __index__ backward",
        "__complex__ __setitem__",
    )
    #: These hand values to Python code, or memory to others, and return tensors.
    DOORS = words("apply_ map_ map2_ share_memory_ __deepcopy__ _ctc_loss tensor_split")
    #: Public memory, too, may be written through these, and nobody would know.
    WRITTEN = words("numpy __array__ __dlpack__ apply_ map_ map2_")
    #: These hand out memory that may be written later.
    EXPORTS = words(
        "numpy __array__ data_ptr untyped_storage storage _typed_storage __dlpack__ share_memory_"
    )

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self.watch = watch

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Look at who leaves."""
        watch = self.watch
        reads = watch.reads
        watch.calls += 1
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            watch.calls -= 1
        name = getattr(func, "__name__", "")
        leaking = (
            name in self.DOORS
            or (
                name not in self.FACTS
                # New memory from records takes an operation that reads them.
                and (not tensors_only(result) or (watch.reads == reads and _is_new(result, args)))
                # That nobody has written what is there, the operation that makes it says.
                and not (name == "new" and _are_sizes(args[1:]))
            )
        )
        if (leaking or (kwargs and "out" in kwargs)) and not self.watch.paused:
            with self.watch.pause():
                leaves = pytree.tree_leaves((args, kwargs))
                tensors = [t for t in leaves if isinstance(t, Tensor)]
                # What is split says nothing; where it is split is a size.
                told = tensors[1:] if name == "tensor_split" else tensors
                if leaking and any(self.watch.shadow.read(t) is not None for t in told):
                    self.watch.escapes.setdefault(Origin(name, place()))
                if "out" in (kwargs or {}) and self._unseen(kwargs["out"], tensors):
                    self.watch.escapes.setdefault(Origin(f"{name} (into out=)", place()))
                for tensor in tensors if name in self.EXPORTS else ():
                    self.watch.export(tensor)
                for tensor in tensors if name in self.WRITTEN else ():
                    self.watch.shadow.share(tensor)
        return result

    def _unseen(self, out: Any, tensors: list[Tensor]) -> bool:
        """Whether a result was put into memory though no operation was seen to write it there."""
        written = [t for t in pytree.tree_leaves(out) if isinstance(t, Tensor)]
        read = self.watch.shadow.read
        given = [t for t in tensors if all(t is not w for w in written)]
        return any(read(t) is not None for t in given) and any(read(t) is None for t in written)


def _is_new(result: Any, args: Any) -> bool:
    """Whether a tensor was made in memory that no argument has."""
    if not isinstance(result, Tensor) or (args and result is args[0]):
        return False
    given = [t for t in pytree.tree_leaves(args) if isinstance(t, Tensor)]
    try:
        return storage_key(result) not in {storage_key(t) for t in given}
    except NotImplementedError:  # inside vmap, where operations are followed one level below
        return False


def _are_sizes(values: Any) -> bool:
    """Of such memory the operation that makes it says that nobody has written it."""
    return all(isinstance(size, int) for size in pytree.tree_leaves(values))


def tensors_only(result: Any) -> bool:
    """Whether what a function returned is tensors, or nothing."""
    if isinstance(result, (tuple, list)):
        return all(map(tensors_only, result))
    return result is None or isinstance(result, Tensor)
