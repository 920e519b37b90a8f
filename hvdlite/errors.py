"""Every exception of hvdlite.

::

    HvdliteError
    |- NotInitializedError (ValueError)       a call that needs hvdlite.init() came before it
    |- SettingError (ValueError)              an environment variable, flag or argument has a bad value
    |  |- CompressionError                    an unknown compressor, or an option it cannot work with
    |  `- ProcessSetError                     a set of ranks that is not registered, or that this rank is not in
    |- MissingDependencyError (ImportError)   an optional package is absent
    |- WorldSizeError (RuntimeError)          the launcher says several processes and MPI says one
    |- LaunchError (RuntimeError)             the launcher could not start the job
    |- ForkedError (RuntimeError)             a forked child tried to communicate
    |- HostsUpdatedInterrupt (RuntimeError)   not a fault: an elastic job is about to get another number of ranks
    `- HorovodInternalError (RuntimeError)    a collective failed; the parent has Horovod's name, so scripts that catch it work
       |- MismatchError                       ranks disagree about a tensor
       |- DuplicateNameError (ValueError)     the name is already in flight on this rank
       |- PeerLeftError                       another rank finished or failed while this one waited
       |- UnsupportedError (ValueError)        a collective cannot do what was asked; also a NotImplementedError, as in Horovod
       |- StalledError                        a rank has not answered for too long
       `- EngineError                         the communication thread itself failed

Message form: ``<what is wrong, with the value>; <what was expected>; <what to do>``.
"""

from typing import TYPE_CHECKING


class HvdliteError(Exception):
    """The root: everything hvdlite raises on purpose."""

    if not TYPE_CHECKING:
        __init__ = Exception.__init__  # by this TensorFlow knows that it may raise the class anew, with the user's line in the message


class NotInitializedError(HvdliteError, ValueError):
    """A call that needs :func:`hvdlite.init` came before it, or after shutdown."""


class SettingError(HvdliteError, ValueError):
    """A setting, flag or argument has a value that cannot be used."""


class CompressionError(SettingError):
    """A compressor is unknown, or was given an option it cannot work with."""


class ProcessSetError(SettingError):
    """A process set is not registered (any more), or this rank is not a member of it."""


class MissingDependencyError(HvdliteError, ImportError):
    """An optional package is needed and absent."""


class WorldSizeError(HvdliteError, RuntimeError):
    """The environment promises several processes and MPI sees only one."""


class LaunchError(HvdliteError, RuntimeError):
    """The launcher could not start the job."""


class ForkedError(HvdliteError, RuntimeError):
    """A forked child tried to use its parent's connection."""


class HostsUpdatedInterrupt(HvdliteError, RuntimeError):
    """The set of hosts of an elastic job has changed; ``hvd.elastic.run`` catches it. ``skip_sync``: no rank was added, so all have the state."""

    def __init__(self, skip_sync: bool = False):
        super().__init__(skip_sync)
        self.skip_sync = skip_sync


class HorovodInternalError(HvdliteError, RuntimeError):
    """A collective failed. Named as in Horovod."""


class MismatchError(HorovodInternalError):
    """Ranks disagree about the shape, dtype, operation, root or compression of a tensor."""


class DuplicateNameError(HorovodInternalError, ValueError):
    """A tensor of the same name is still being processed on this rank."""


class UnsupportedError(HorovodInternalError, SettingError, NotImplementedError):
    """A collective cannot do what was asked. A wrong argument; but Horovod's scripts expect a RuntimeError or NotImplementedError."""


class PeerLeftError(HorovodInternalError):
    """Another rank finished or failed while this rank waited for it."""


class StalledError(HorovodInternalError):
    """A rank has not taken part in a collective for longer than the limit."""


class EngineError(HorovodInternalError):
    """The communication thread failed; the cause is chained."""
