"""The world of ranks: the only module with state."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import settings as settings_module
from .arrays import kernels_built
from .channel import Channel
from .engine import Engine
from .errors import ForkedError, NotInitializedError, ProcessSetError, SettingError, WorldSizeError
from .seeding import seed_everything
from .settings import Settings
from .telemetry.last import LastCollective
from .telemetry.metrics import Metrics
from .telemetry.reports import Reports, parse_stop
from .telemetry.steps import StepTimes
from .telemetry.timeline import Timeline
from .transports import Topology, Transport
from .version import VERSION

if TYPE_CHECKING:
    from .transports.mpi import MpiTransport

LOG = logging.getLogger("hvdlite")


@dataclass
class World:
    """What init() makes and shutdown() takes away."""

    settings: Settings
    transport: Transport
    engine: Engine
    metrics: Metrics
    reports: Reports = field(default_factory=Reports)
    step_times: StepTimes | None = None
    """Where steps are timed, for a forecast."""
    pid: int = field(default_factory=os.getpid)
    comm: Any = None
    """The communicator that init() was given."""
    remarked: set[str] = field(default_factory=set)
    kept: dict[Hashable, Any] = field(default_factory=dict)
    """What adapters keep between two calls that have no object in common; each under keys of its own."""

    @property
    def topology(self) -> Topology:
        """Where this process stands."""
        return self.transport.topology

    def channel(self, process_set: Any = None) -> Channel:
        """What this rank has in common with a ``hvd.ProcessSet``; with all ranks where that is None.

        Raises:
            ProcessSetError: the set is not registered, or this rank is not in it.
        """
        if process_set is None:
            return self.engine.channel
        set_id = getattr(process_set, "process_set_id", None)
        if not isinstance(set_id, int):
            raise ProcessSetError(
                f"process_set={process_set}; a set that is registered is expected; pass it to hvd.init(process_sets=[...]) or hvd.add_process_set() first"
            )
        channel = self.engine.sets.channel(set_id)
        if set_id and process_set.ranks != list(channel.members.ranks):
            raise ProcessSetError(
                f"process_set={process_set} is of an earlier init(), and {channel.members.set_name} has the ranks {list(channel.members.ranks)} now; a set "
                "that is registered is expected; pass it to hvd.init(process_sets=[...]) or hvd.add_process_set() again"
            )
        return channel

    def partners(self, process_set: Any = None) -> Channel | None:
        """:meth:`channel`, where this rank has something to exchange there; None if it is not in the set, or alone in it.

        Raises:
            ProcessSetError: the set is not registered.
        """
        if getattr(process_set, "process_set_id", None) is not None and not process_set.included():
            return None
        channel = self.channel(process_set)
        return channel if channel.topology.size > 1 else None

    def auto_name(self, kind: str) -> str:
        """A name for a collective that was given none; equal on all ranks that call in the same order."""
        return self.engine.channel.auto_name(kind)

    def follow(self, timeline: Timeline | None) -> None:
        """Note what happens in this timeline from now on, and complete the one before."""
        before, self.engine.timeline = self.engine.timeline, timeline
        if before is not None:
            before.close()

    def remark_on(self, compression: str) -> None:
        """Say once when compressing cannot pay: on one machine, where memory moves gradients faster than any codec encodes them."""
        topology = self.topology
        if compression != "none" and topology.size > 1 and topology.local_size == topology.size and topology.rank == 0 and compression not in self.remarked:
            self.remarked.add(compression)
            LOG.info(
                "compression=%s: all %d ranks are on this machine, where memory moves gradients faster than codecs encode them; 'none' is usually faster here",
                compression, topology.size,
            )  # fmt: skip


_world: World | None = None


def init(comm: Any = None) -> None:
    """Join the job; :func:`hvdlite.init` also registers process sets. A second call does nothing.

    Args:
        comm: an ``mpi4py`` communicator to use instead of all processes.
    Raises:
        WorldSizeError: the environment promises several processes and MPI sees one.
        MissingDependencyError: MPI is needed and absent.
    """
    global _world
    if _world is not None:
        return
    settings = Settings.from_environ()
    _configure_log(settings)
    stop_at = parse_stop(settings.stop_at)
    transport = _make_transport(settings, comm)
    metrics, rank = Metrics(), transport.topology.rank
    if settings.seed >= 0:
        seed_everything(settings.seed, rank)
    reports = Reports(settings.report_file, stop_at, rank)
    reports.write_job(_job_facts(settings, transport))
    step_times = StepTimes(settings.measure_folder, settings.measure_steps, rank) if settings.measure_folder else None
    last = LastCollective(settings_module.job_directory(), rank)
    _world = World(settings, transport, Engine(transport, settings, metrics, last), metrics, reports, step_times, comm=comm)
    atexit.register(shutdown)
    ignored = settings_module.ignored_horovod_variables()
    if ignored and transport.topology.rank == 0:
        LOG.info("set for Horovod and without meaning here: %s", ", ".join(ignored))
    if settings.timeline:
        start_timeline(settings.timeline, settings.timeline_mark_cycles)
    _end_the_job_on_exceptions()


def shutdown() -> None:
    """Leave the job, after what was agreed is done. Waits for the other ranks to leave or to need this one. A second call does nothing."""
    global _world
    if _world is None or _world.pid != os.getpid():
        _world = None
        return
    world, _world = _world, None
    atexit.unregister(shutdown)
    world.reports.end(world.metrics)
    together = world.engine.stop()
    world.follow(None)
    if together:
        world.transport.close()
    elif world.engine.is_broken:
        world.transport.abandon()


def reset() -> None:
    """Leave the job and join it again with the same ranks, each of which calls it: nothing of what was under way, or failed, is left."""
    comm = world().comm
    shutdown()
    init(comm)


def is_initialized() -> bool:
    """Whether init() was called and shutdown() was not."""
    return _world is not None


def world() -> World:
    """The world, for those who communicate.

    Raises:
        NotInitializedError: before init(), or after shutdown().
        ForkedError: in a forked child.
    """
    if _world is None:
        raise NotInitializedError("Horovod has not been initialized; use hvd.init().")
    if _world.pid != os.getpid():
        raise ForkedError(
            f"process {os.getpid()} was forked from rank {_world.topology.rank} (pid {_world.pid}) and cannot communicate; only the process that called "
            "init() can; do it there, or start workers with the 'spawn' method"
        )
    return _world


def topology() -> Topology:
    """Where this process stands; also in a forked child, which inherits it."""
    return _world.topology if _world is not None else world().topology


def rank() -> int:
    """This process's number among all, from 0."""
    return topology().rank


def size() -> int:
    """Number of processes."""
    return topology().size


def local_rank() -> int:
    """This process's number on its node."""
    return topology().local_rank


def local_size() -> int:
    """Number of processes on this node."""
    return topology().local_size


def cross_rank() -> int:
    """This node's number among the nodes that have this local rank."""
    return topology().cross_rank


def cross_size() -> int:
    """Number of nodes that have this local rank."""
    return topology().cross_size


def is_homogeneous() -> bool:
    """Whether every node has the same number of processes."""
    return topology().is_homogeneous


def metrics() -> dict[str, float]:
    """This rank's counters since init(): bytes on the wire, time that communication cost. See :class:`hvdlite.telemetry.metrics.Metrics`."""
    return world().metrics.snapshot()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Rank 0 writes what it communicates to a file from now on: a Chrome trace, see :mod:`hvdlite.telemetry.timeline`. Other ranks write nothing.

    Args:
        file_path: the file, replaced if there is one. A timeline that is being written is completed.
        mark_cycles: also mark where each round of negotiation begins.
    Raises:
        NotInitializedError: before :func:`init`.
        SettingError: the file cannot be written.
    """
    current = world()
    if current.topology.rank == 0:
        current.follow(Timeline(file_path, 0, mark_cycles=mark_cycles))


def stop_timeline() -> None:
    """Complete the file of the timeline; nothing happens if there is none.

    Raises:
        NotInitializedError: before :func:`init`.
    """
    world().follow(None)


def _job_facts(settings: Settings, transport: Transport) -> dict[str, str]:
    """Where this job runs, for whoever reads its reports."""
    topology = transport.topology
    return {
        "ranks": str(topology.size),
        "nodes": str(topology.cross_size),
        "transport": type(transport).__module__.rpartition(".")[2],  # the file's name is what users type
        "MPI": " ".join(getattr(transport, "library", "none").partition(",")[0].split()),
        "kernels": "compiled" if kernels_built() and settings.kernels != "off" else "numpy",
        **settings_module.changed_values(settings, but=("compression", "seed", "report_file", "stop_at")),
    }


def _make_transport(settings: Settings, comm: Any) -> Transport:
    from .transports import mpi
    from .transports.local import LocalTransport

    promised = settings_module.promised_size()
    promises_several = promised is not None and promised[1] > 1
    wants_mpi = comm is not None or settings.transport == "mpi" or settings_module.under_mpi() or mpi.is_running() or promises_several
    if settings.transport == "local" or not wants_mpi:
        LOG.info("hvdlite: one process (size 1); to use several: hvdliterun -np 2 python %s", os.path.basename(sys.argv[0]) or "train.py")
        return LocalTransport()
    settings_module.quiet_mpi()
    shared = {"the version of hvdlite": VERSION, **settings_module.shared_values(settings)}
    transport = mpi.MpiTransport(settings.slots, comm, shared, _node_sizes(settings))
    settings_module.scrub_launcher_variables()
    if transport.topology.size == 1 and comm is None and promised is not None and promised[1] > 1:
        raise WorldSizeError(
            f"{promised[0]}={promised[1]} promises {promised[1]} processes, but MPI ({transport.library}) sees one, so each would train alone; "
            "start the job with the launcher of this MPI: hvdliterun -np N python train.py (under Slurm: srun --mpi=pmix or --mpi=pmi2); "
            "or set HVDLITE_TRANSPORT=local if one process is what you want"
        )
    if transport.topology.size == 1:
        transport.close()
        LOG.info("hvdlite: one process (size 1)")
        return LocalTransport()
    return transport if settings.transport == "mpi" else _through_memory(transport, settings)


def _node_sizes(settings: Settings) -> list[int]:
    try:
        return [int(size) for size in settings.ranks_per_node.split(",") if size]
    except ValueError:
        raise SettingError(f"ranks_per_node={settings.ranks_per_node!r} is no list of numbers of ranks; e.g. 2,1 for three ranks is expected") from None


def _through_memory(transport: MpiTransport, settings: Settings) -> Transport:
    """Through the memory of each machine where it has several ranks, as far as there is enough of it."""
    from .transports import hierarchical, shared_memory

    topology, needed = transport.topology, shared_memory.smallest_arena_bytes(settings.slots)
    if transport.smallest(-topology.local_size) == -1:  # no node has two
        return transport

    def node_bytes(node: MpiTransport) -> int:
        found = shared_memory.arena_bytes(node)
        if found < needed and node.topology.rank == 0:
            LOG.warning(
                "/dev/shm leaves %.0f MB a rank, and exchanging through memory takes %.0f MB; ranks exchange through MPI, which is slower; "
                "give the machine more (docker run --shm-size=2g)", found / 1e6, needed / 1e6
            )  # fmt: skip
        return found if found >= needed else 0

    if topology.local_size == topology.size:
        arena_bytes = node_bytes(transport)
        return shared_memory.connect(transport, settings.slots, arena_bytes) if arena_bytes else transport
    return hierarchical.connect(transport, settings.slots, node_bytes) or transport


def _configure_log(settings: Settings) -> None:
    LOG.setLevel(settings.log_level)
    if not LOG.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        LOG.addHandler(handler)
        LOG.propagate = False


def _end_the_job_on_exceptions() -> None:
    """MPI's launchers let the others wait forever when one rank raises; ending this process at once makes them end the job."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        previous(kind, error, trace)
        if _world is not None and _world.topology.size > 1 and _world.pid == os.getpid():
            if settings_module.job_directory() is None:  # hvdliterun says it itself, after all output
                sys.stderr.write(f"hvdlite: rank {_world.topology.rank} (pid {os.getpid()}) ends the job: {kind.__name__}: {error}\n")
            sys.stderr.flush()
            sys.stdout.flush()
            os._exit(130 if issubclass(kind, KeyboardInterrupt) else 1)

    if getattr(previous, "__qualname__", "").startswith(_end_the_job_on_exceptions.__name__):
        return
    sys.excepthook = hook
