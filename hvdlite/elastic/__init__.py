"""Training that survives the loss of ranks and uses new ones: Horovod's ``hvd.elastic``, as far as it knows no framework.

``state`` says what must survive, ``running`` is the decorator around a training, ``restart`` is a rank's side of a job that hvdliterun starts again.
The frameworks' own states are in ``hvdlite.torch.elastic``, ``hvdlite.tensorflow.elastic`` and ``hvdlite.keras.elastic``.
"""

from .notifications import HostUpdateResult
from .running import run, run_fn
from .state import ObjectState, State

__all__ = ["HostUpdateResult", "ObjectState", "State", "run", "run_fn"]
