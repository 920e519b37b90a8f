"""Elastic training with PyTorch: ``hvd.elastic``. Names, arguments and meaning are Horovod's; docs/elastic.md says what is kept when."""

from hvdlite.elastic import ObjectState, State, run

from .sampler import ElasticSampler
from .state import ModelStateHandler, OptimizerStateHandler, SamplerStateHandler, StateHandler, TorchState

__all__ = [
    "ElasticSampler",
    "ModelStateHandler",
    "ObjectState",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "State",
    "StateHandler",
    "TorchState",
    "run",
]
