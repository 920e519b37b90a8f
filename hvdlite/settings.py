"""Every knob of hvdlite, and the only reader of ``os.environ``.

A field of :class:`Settings` is the one place of a knob: its default, type, unit (in the name), environment variable
(``HVDLITE_`` + the name in capitals), launcher flag (``--`` + the name with dashes) and help.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from .errors import SettingError

PREFIX = "HVDLITE_"


def setting(
    default: Any,
    help: str,  # noqa: A002 - the word users of argparse and click know
    *,
    choices: tuple[str, ...] = (),
    at_least: float | None = None,
    shared: bool = False,
    horovod: str = "",
) -> Any:
    """Declare a knob. ``shared``: ranks whose values differ could not work together; ``horovod``: Horovod's variable that means the same."""
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "at_least": at_least, "shared": shared, "horovod": horovod})


@dataclass(frozen=True)
class Settings:
    """The knobs and their values in this process."""

    compression: str = setting("", "compressor of gradients in place of the script's own, e.g. powersgd:rank=4")
    compress_after_steps: int = setting(0, "exchange gradients uncompressed in the first so many steps of an optimizer", at_least=0, shared=True)
    transport: str = setting(
        "auto",
        "how ranks talk: auto, local (one process), mpi, shared_memory (one machine), or hierarchical (several)",
        choices=("auto", "local", "mpi", "shared_memory", "hierarchical"),
        shared=True,
    )
    ranks_per_node: str = setting("", "take ranks of one machine for several nodes, e.g. 2,1: to try what several do", shared=True)
    bucket_bytes: int = setting(0, "gradients are sent in buckets of about this size; 0: the size that makes the first steps fastest", at_least=0, shared=True)
    fusion_threshold_bytes: int = setting(
        32 << 20, "free-standing tensors are fused up to this size", at_least=0, shared=True, horovod="HOROVOD_FUSION_THRESHOLD"
    )
    slots: int = setting(4, "exchanges in flight at once, each on a communicator of its own", at_least=1, shared=True)
    slots_in_use: int = setting(0, "use only so many of the slots; 0: as many as make the first steps fastest", at_least=0, shared=True)
    cache_capacity: int = setting(4096, "tensor names whose details ranks remember", at_least=8, shared=True, horovod="HOROVOD_CACHE_CAPACITY")
    poll_min_us: int = setting(20, "shortest pause between two looks at a message in flight", at_least=1)
    poll_max_us: int = setting(200, "longest such pause while data is moving", at_least=1)
    stall_warning_seconds: float = setting(
        60.0, "report ranks that keep others waiting this long; 0 never", at_least=0, horovod="HOROVOD_STALL_CHECK_TIME_SECONDS"
    )
    stall_shutdown_seconds: float = setting(
        0.0, "fail a collective after waiting this long; 0 never", at_least=0, horovod="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
    )
    elastic_timeout_seconds: float = setting(
        600.0, "how long an elastic job waits for its smallest number of ranks", at_least=0, horovod="HOROVOD_ELASTIC_TIMEOUT"
    )
    check_parameters: str = setting("error", "ranks that start training from different weights: error, warn or off", choices=("error", "warn", "off"))
    join: str = setting(
        "active", "while ranks have joined: means of those active, every collective; or horovod: means divided by all, allreduce only",
        choices=("active", "horovod"), shared=True,
    )  # fmt: skip
    seed: int = setting(-1, "init() seeds random, numpy and the frameworks imported by then, each rank differently; -1: no", at_least=-1, shared=True)
    report_file: str = setting("", "rank 0 appends what hvd.report() is told to this file, as JSON lines", shared=True)
    stop_at: str = setting("", "hvd.report() ends the script then: steps=100, minutes=5, loss<=0.1 or accuracy>=0.9", shared=True)
    measure_folder: str = setting("", "every rank writes to this folder what its steps take: for hvdlite predict", shared=True)
    measure_steps: int = setting(24, "so many steps are measured then", at_least=8, shared=True)
    shadow: str = setting("", "compressors to play beside uncompressed gradients, e.g. topk:density=0.01,fp16, for hvdlite ab --mode shadow", shared=True)
    shadow_every: int = setting(1, "play them in every so many steps", at_least=1, shared=True)
    kernels: str = setting("auto", "compiled loops: auto, or off to use numpy's", choices=("auto", "off"))
    log_level: str = setting("INFO", "what hvdlite itself logs", choices=("DEBUG", "INFO", "WARNING", "ERROR"), horovod="HOROVOD_LOG_LEVEL")
    timeline: str = setting("", "rank 0 writes what it communicates to this file, a Chrome trace", horovod="HOROVOD_TIMELINE")
    timeline_mark_cycles: bool = setting(False, "mark the rounds of negotiation in the timeline", horovod="HOROVOD_TIMELINE_MARK_CYCLES")

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Read the knobs that are set; complain about those that cannot be read. Horovod's variables count where ours are not set.

        Raises:
            SettingError: a value is of the wrong kind, out of range, or no known choice.
        """
        environ = os.environ if environ is None else environ
        ours = {f.name: parse(f.name, environ[env_name(f.name)]) for f in fields() if environ.get(env_name(f.name), "")}
        found = cls(**_horovods(environ) | ours)
        if found.slots_in_use > found.slots:
            raise SettingError(
                f"{env_name('slots_in_use')}={found.slots_in_use} is too large; there are {env_name('slots')}={found.slots}; use fewer, or make more"
            )
        return found


def shared_values(settings: Settings) -> dict[str, Any]:
    """What must be the same on every rank."""
    return {f.name: getattr(settings, f.name) for f in fields() if f.metadata["shared"]}


def changed_values(settings: Settings, *, but: Collection[str]) -> dict[str, str]:
    """The knobs that are not at their default, by environment variable; without those named in ``but``."""
    values = {f.name: (getattr(settings, f.name), f.default) for f in fields() if f.name not in but}
    return {env_name(name): str(value) for name, (value, default) in values.items() if value != default}


def fields() -> tuple[dataclasses.Field[Any], ...]:
    """The knobs, in order."""
    return dataclasses.fields(Settings)


def field(name: str) -> dataclasses.Field[Any]:
    """The knob of that name."""
    return next(f for f in fields() if f.name == name)


def env_name(name: str) -> str:
    """``bucket_bytes`` -> ``HVDLITE_BUCKET_BYTES``."""
    return PREFIX + name.upper()


def flag_name(name: str) -> str:
    """``bucket_bytes`` -> ``--bucket-bytes``."""
    return "--" + name.replace("_", "-")


def parse(name: str, written: str, *, variable: str = "") -> Any:
    """The value of knob ``name`` as written by a user, in ``variable`` if that is not the knob's own."""
    declared = field(name)
    kind = type(declared.default)
    variable = variable or env_name(name)
    try:
        value = msgspec.convert(written.strip(), kind, strict=False)
    except msgspec.ValidationError:
        raise SettingError(f"{variable}={written!r} is not {_kind(kind)}; {declared.metadata['help']}; give e.g. {declared.default}, or unset it") from None
    choices, at_least = declared.metadata["choices"], declared.metadata["at_least"]
    if isinstance(value, str) and choices:
        folded = {c.lower(): c for c in choices}
        if value.lower() not in folded:
            raise SettingError(f"{variable}={written!r} is unknown; choose one of {', '.join(choices)}, or unset it")
        value = folded[value.lower()]
    if at_least is not None and not value >= at_least:
        raise SettingError(f"{variable}={written} is too small; at least {at_least} is expected ({declared.metadata['help']}); correct or unset it")
    return value


def _kind(kind: type) -> str:
    return {"int": "a whole number", "float": "a number", "bool": "1 or 0"}.get(kind.__name__, f"a {kind.__name__}")


# --- Horovod's variables ------------------------------------------------------------------------------------------------------------

HOROVOD_PREFIX = "HOROVOD_"
_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
_ALWAYS_ON = "HOROVOD_DYNAMIC_PROCESS_SETS"
_AS_WRITTEN_HERE = {  # values that Horovod knows and we write differently; "" leaves the default
    "HOROVOD_LOG_LEVEL": {"TRACE": "DEBUG", "FATAL": "ERROR"},
    "HOROVOD_TIMELINE": {"DYNAMIC": ""},  # start_timeline() may come at any time here
    "HOROVOD_CACHE_CAPACITY": {str(n): "8" for n in range(8)},  # 0 is no cache there
}


def _horovods(environ: Mapping[str, str]) -> dict[str, Any]:
    """The knobs that Horovod's variables set."""
    found: dict[str, Any] = {}
    for knob in fields():
        variable = knob.metadata["horovod"]
        written = as_written_here(variable, environ.get(variable, ""))
        if written:
            found[knob.name] = parse(knob.name, written, variable=variable)
    if environ.get(_STALL_CHECK_DISABLE, "0") not in ("", "0"):
        found["stall_warning_seconds"] = 0.0
    return found


def as_written_here(variable: str, written: str) -> str:
    """What a value of Horovod's variable is called here."""
    return _AS_WRITTEN_HERE.get(variable, {}).get(written.strip().upper(), written)


def ignored_horovod_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """Those of Horovod's variables that are set and mean nothing here."""
    environ = os.environ if environ is None else environ
    known = {_STALL_CHECK_DISABLE, _ALWAYS_ON, *(f.metadata["horovod"] for f in fields())}
    return sorted(name for name in environ if name.startswith(HOROVOD_PREFIX) and name not in known)


# --- What launchers say about the job -----------------------------------------------------------------------------------------------

_SIZE_VARIABLES = ("HVDLITE_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", "WORLD_SIZE")
_MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK", "HVDLITE_SIZE")
_LAUNCHER_PREFIXES = ("PMI_", "PMIX_", "PRTE_", "HYDI_", "HYDRA_")


def promised_size(environ: Mapping[str, str] | None = None) -> tuple[str, int] | None:
    """``(variable, number of processes)`` that the environment promises, the largest; None when nothing does."""
    environ = os.environ if environ is None else environ
    found = [(name, int(environ[name])) for name in _SIZE_VARIABLES if environ.get(name, "").isdigit()]
    return max(found, key=lambda item: item[1], default=None)


def under_mpi(environ: Mapping[str, str] | None = None) -> bool:
    """Whether an MPI launcher started this process."""
    environ = os.environ if environ is None else environ
    return any(name in environ for name in _MPI_VARIABLES)


def scrub_launcher_variables(environ: MutableMapping[str, str] | None = None) -> None:
    """Remove what ties a process to MPI's launcher: a child that inherits it and loads MPI takes the whole job down."""
    environ = os.environ if environ is None else environ
    for name in [n for n in environ if n.startswith(_LAUNCHER_PREFIXES)]:
        del environ[name]


def quiet_mpi(environ: MutableMapping[str, str] | None = None) -> None:
    """Keep MPI libraries from complaining about hardware that is not there; what the user has set stays."""
    environ = os.environ if environ is None else environ
    environ.setdefault("OMPI_MCA_osc", "^ucx")  # Open MPI's wheel prints an error for every window without InfiniBand


def launcher_rank(environ: Mapping[str, str] | None = None) -> int | None:
    """This process's rank as MPI's launcher announced it; None when none did.

    MPICH's variable comes first: a job started inside a rank of another MPI inherits that MPI's variables too.
    """
    environ = os.environ if environ is None else environ
    found = next((environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK") if environ.get(name, "").isdigit()), None)
    return None if found is None else int(found)


def snapshot() -> dict[str, str]:
    """A copy of the environment, to be completed and handed to a new process."""
    return dict(os.environ)


def job_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """Where hvdliterun and its ranks exchange pids, output and causes of failure; None without hvdliterun."""
    environ = os.environ if environ is None else environ
    return environ.get("HVDLITE_JOB_DIR")


def elastic_directory(environ: Mapping[str, str] | None = None) -> str | None:
    """Where the ranks of an elastic job keep what they commit; None in other jobs."""
    environ = os.environ if environ is None else environ
    return environ.get("HVDLITE_ELASTIC_DIR")


def as_horovod(environ: Mapping[str, str] | None = None) -> bool:
    """Whether ``import horovod`` is to give hvdlite."""
    environ = os.environ if environ is None else environ
    return environ.get("HVDLITE_AS_HOROVOD", "0") == "1"


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside, these variables have these values; None: they are not set. Afterwards they are as before."""
    before = {name: os.environ.get(name) for name in values}
    _set(values)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
