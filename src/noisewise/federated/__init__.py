"""Curves across parties that never show their data."""

from noisewise.federated.aggregator import AcrossParties, Aggregator, LocalAggregator, without_noise
from noisewise.federated.calibration_question import GroupSumsQuestion
from noisewise.federated.curves import ecdf, histogram, hosmer_lemeshow, quantiles, roc
from noisewise.federated.domain import Domain, Records
from noisewise.federated.flower import FlowerAggregator
from noisewise.federated.function_sharing import FunctionSharing
from noisewise.federated.masked import MaskedAggregator
from noisewise.federated.noise import SharedNoise
from noisewise.federated.protected import EACH_RECORD as EACH_RECORD, Protected
from noisewise.federated.questions import EcdfQuestion, HistogramQuestion, Question, RocQuestion
from noisewise.federated.reading_questions import question_from_dict
from noisewise.federated.results import Sums
from noisewise.federated.threat import ThreatModel

__all__ = [
    "AcrossParties",
    "Aggregator",
    "Domain",
    "EcdfQuestion",
    "FlowerAggregator",
    "FunctionSharing",
    "GroupSumsQuestion",
    "HistogramQuestion",
    "LocalAggregator",
    "MaskedAggregator",
    "Protected",
    "Question",
    "Records",
    "RocQuestion",
    "SharedNoise",
    "Sums",
    "ThreatModel",
    "ecdf",
    "histogram",
    "hosmer_lemeshow",
    "quantiles",
    "question_from_dict",
    "roc",
    "without_noise",
]
