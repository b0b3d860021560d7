"""`FlowerAggregator`: sums by Flower's SecAgg+, where a federation already runs Flower.

An adapter, not a dependency: install the extra ``flower`` for it. SecAgg+ is made for averages
of clipped floating-point parameters; here its quantisation is set so that one step is one, and
integers come out exactly. It has 32 bits for each number, so every party's sums must lie within
half of what 32 bits leave for that many parties; larger ones are refused before anything is sent.

What it does not give: SecAgg+ as shipped (flwr 1.41 was read) grows every mask from a seed that
is folded to 32 bits, with a generator that is not cryptographic. Whoever sees the masked
vectors can search 2^32 seeds. So the server is trusted here, and the statement says so; it also
adds the noise. Use :class:`~noisewise.federated.MaskedAggregator` against a curious server.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from noisewise import checks
from noisewise.ecdf.mechanisms import IntArray
from noisewise.errors import MissingExtraError
from noisewise.federated.aggregator import SummedInOnePlace
from noisewise.federated.masking import AggregationError
from noisewise.federated.threat import ThreatModel

__all__ = ["FlowerAggregator"]

MODULUS_BITS = 32


@dataclass(frozen=True)
class FlowerAggregator(SummedInOnePlace):
    """Aggregation by Flower's SecAgg+, run through Flower's own workflow and client code.

    Parameters
    ----------
    shares : float
        Part of the parties that hold shares of one party's keys.
    threshold : float
        Part of those shares that rebuilds a key.
    noiseless : bool
        For tests; see :func:`~noisewise.federated.without_noise`.
    """

    shares: float = 1.0
    threshold: float = 0.67
    noiseless: bool = False

    def __post_init__(self) -> None:
        checks.probability("shares", self.shares)
        checks.probability("threshold", self.threshold)

    @property
    def threat(self) -> ThreatModel:
        """The server is trusted with the sums, and must be trusted not to attack the masks."""
        return ThreatModel(
            protocol="Flower SecAgg+ (pairwise masks, Shamir recovery)",
            adversary="none: the server is trusted; masks only keep vectors out of its logs",
            must_not_collude="the server with anybody",
            server_sees="masked vectors and the sum without noise",
            result_goes_to="whoever the server gives it to",
            drop_outs="parties may stop as long as enough shares of their keys remain; otherwise "
            "there is no result",
            noise="added once, in full, by the server",
            not_promised=(
                "privacy against the server: SecAgg+ grows masks from 32-bit seeds, which can be "
                "searched",
                "that a party's vector is right",
            ),
            noiseless=self.noiseless,
        )

    def total(self, vectors: Sequence[IntArray]) -> IntArray:
        """Sum by SecAgg+ in this process."""
        return secure_sum(vectors, self.shares, self.threshold)


def clipping_range(parties: int) -> int:
    """Largest absolute number that a sum over so many parties leaves room for."""
    bits = MODULUS_BITS - parties.bit_length()
    return 1 << (bits - 1)


def workflow(parties: int, shares: float = 1.0, threshold: float = 0.67) -> Any:
    """Return Flower's SecAgg+ workflow, set up to sum integers exactly."""
    flower = _flower()
    limit = clipping_range(parties)
    return flower["SecAggPlusWorkflow"](
        num_shares=float(shares),
        reconstruction_threshold=float(threshold),
        max_weight=1.0,
        clipping_range=float(limit),
        quantization_range=2 * limit,
        modulus_range=1 << MODULUS_BITS,
    )


def as_parameters(vector: IntArray, parties: int) -> list[Any]:
    """Return a party's vector as the arrays that its Flower client sends, or refuse."""
    limit = clipping_range(parties)
    if vector.size and int(np.abs(vector).max()) > limit - 1:
        raise AggregationError(
            f"SecAgg+ sums numbers up to {limit - 1} from {parties} parties exactly, got "
            f"{int(np.abs(vector).max())}: use MaskedAggregator (64 bits), fewer parties, or "
            "delta = 0, whose measurements are counts"
        )
    return [vector.astype(np.float64)]


def secure_sum(vectors: Sequence[IntArray], shares: float, threshold: float) -> IntArray:
    """Sum vectors by Flower's own server and client code, all in this process."""
    parties = len(vectors)
    if parties < 3:
        raise ValueError("SecAgg+ needs at least three parties")
    flower = _flower()
    parameters = [as_parameters(vector, parties) for vector in vectors]
    strategy = _collecting_strategy(flower, parties)
    blank = flower["Context"](
        run_id=1, node_id=0, node_config={}, state=flower["RecordDict"](), run_config={}
    )
    context = flower["LegacyContext"](context=blank, strategy=strategy)
    constant = flower["constant"]
    context.state.config_records[constant.MAIN_CONFIGS_RECORD] = flower["ConfigRecord"](
        {constant.Key.CURRENT_ROUND: 1}
    )
    context.state.array_records[constant.MAIN_PARAMS_RECORD] = flower["ArrayRecord"]()
    grid = _InProcessGrid(flower, parameters)
    with _identity():
        workflow(parties, shares, threshold)(grid, context)
    if strategy.average is None:
        raise AggregationError("Flower halted the aggregation: too few parties were left")
    # The workflow divides by the total weight, which is the number of parties.
    total: IntArray = np.rint(np.asarray(strategy.average) * strategy.results).astype(np.int64)
    return total


class _InProcessGrid:
    """Hands the server's messages to the client code and back; Flower's grid, without sockets."""

    def __init__(self, flower: dict[str, Any], parameters: list[list[Any]]) -> None:
        self._flower = flower
        self._parameters = parameters
        self._contexts = {
            node: flower["Context"](
                run_id=1, node_id=node, node_config={}, state=flower["RecordDict"](), run_config={}
            )
            for node in range(1, len(parameters) + 1)
        }

    def send_and_receive(
        self, messages: Iterable[Any], *, timeout: float | None = None
    ) -> list[Any]:
        """Return every client's reply."""
        # Copies, as a socket would make them: clients take their messages apart.
        return [self._reply(copy.deepcopy(message)) for message in messages]

    def _reply(self, message: Any) -> Any:
        flower, node = self._flower, message.metadata.dst_node_id

        def fit(asked: Any, _context: Any) -> Any:
            result = flower["FitRes"](
                status=flower["Status"](flower["Code"].OK, ""),
                parameters=flower["ndarrays_to_parameters"](self._parameters[node - 1]),
                num_examples=1,
                metrics={},
            )
            content = flower["compat"].fitres_to_recorddict(result, keep_input=False)
            return flower["Message"](content, reply_to=asked)

        return flower["secaggplus_mod"](message, self._contexts[node], fit)


@contextlib.contextmanager
def _identity() -> Iterator[None]:
    """Give this process the identity of a Flower task, which messages carry, and keep it quiet."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(max(level, logging.WARNING))
    try:
        holder = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:  # versions before 1.40 do not ask for it
        holder = None
    names = ("_task_id", "_run_id", "_node_id")
    before = {name: getattr(holder, name, None) for name in names}
    try:
        for name in names if holder is not None else ():
            if before[name] is None:
                setattr(holder, name, 1)
        yield
    finally:
        for name in names if holder is not None else ():
            setattr(holder, name, before[name])
        logger.setLevel(level)


def _collecting_strategy(flower: dict[str, Any], parties: int) -> Any:
    """Return a strategy that asks every party and keeps the average."""

    class Node:
        def __init__(self, node_id: int) -> None:
            self.node_id = node_id

    class Strategy:
        average: Any = None
        results = 0

        def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
            asked = flower["FitIns"](flower["ndarrays_to_parameters"]([]), {})
            return [(Node(node), asked) for node in range(1, parties + 1)]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            arrays = flower["parameters_to_ndarrays"](results[0][1].parameters)
            self.average, self.results = arrays[0], len(results)
            return None, {}

    return Strategy()


def _flower() -> dict[str, Any]:
    """Import what is needed of Flower, or say which extra brings it."""
    places = {
        "flwr.common": (
            "Code", "FitIns", "FitRes", "Status", "ndarrays_to_parameters",
            "parameters_to_ndarrays",
        ),
        "flwr.app": ("ArrayRecord", "ConfigRecord", "Context", "Message", "RecordDict"),
        "flwr.server": ("LegacyContext",),
        "flwr.server.workflow": ("SecAggPlusWorkflow",),
        "flwr.client.mod": ("secaggplus_mod",),
    }  # fmt: skip
    found: dict[str, Any] = {}
    try:
        for module, names in places.items():
            loaded = importlib.import_module(module)
            found.update({name: getattr(loaded, name) for name in names})
        found["constant"] = importlib.import_module("flwr.server.workflow.constant")
        found["compat"] = importlib.import_module("flwr.compat.common.recorddict_compat")
    except (ImportError, AttributeError) as error:
        raise MissingExtraError(
            "FlowerAggregator needs Flower with its SecAgg+ workflow: install noisewise[flower] "
            f"(flwr 1.41 is known to work; {error})"
        ) from error
    return found
