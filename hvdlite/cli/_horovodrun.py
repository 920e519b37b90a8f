"""horovodrun's options, for ``hvdliterun``: what they mean here, or that they mean nothing.

Those whose names and meaning are ours already (``-np``, ``--output-filename``, ``--cache-capacity``, ``--log-level``, ...) are not listed again.
"""

from __future__ import annotations

import platform
from typing import Any

import click

from .. import settings
from ..errors import SettingError

_IGNORED_FLAGS = (
    "--disable-cache",
    "--hierarchical-allreduce/--no-hierarchical-allreduce",
    "--hierarchical-allgather/--no-hierarchical-allgather",
    "--torus-allreduce/--no-torus-allreduce",
    "--autotune/--no-autotune",
    "--mpi-threads-disable/--no-mpi-threads-disable",
    "--tcp",
    "--log-with-timestamp",
    "--log-without-timestamp",
    "--log-hide-timestamp",
    "--no-log-hide-timestamp",
    "--gloo",
    "--mpi",
    "--jsrun",
)
_IGNORED_VALUES = (
    "--start-timeout",
    "--network-interfaces",
    "--network-interface",
    "--cycle-time-ms",
    "--autotune-log-file",
    "--autotune-warmup-samples",
    "--autotune-steps-per-sample",
    "--autotune-bayes-opt-max-samples",
    "--autotune-gaussian-process-noise",
    "--mpi-args",
    "--binding-args",
    "--num-nccl-streams",
    "--thread-affinity",
    "--gloo-timeout-seconds",
)
_ELASTIC = (
    "--min-np",
    "--min-num-proc",
    "--max-np",
    "--max-num-proc",
    "--slots-per-host",
    "--elastic-timeout",
    "--reset-limit",
    "--host-discovery-script",
)
_KNOBS = {  # an option whose value is that of a knob under another name
    "--timeline-filename": "timeline",
    "--stall-check-warning-time-seconds": "stall_warning_seconds",
    "--stall-check-shutdown-time-seconds": "stall_shutdown_seconds",
}


def options() -> list[click.Parameter]:
    """They work and are not shown by ``--help``."""
    ignored = [_hidden(flag, is_flag=True, callback=_ignore) for flag in _IGNORED_FLAGS]
    ignored += [_hidden(name, callback=_ignore) for name in _IGNORED_VALUES]
    ignored += [_hidden("-p", "--ssh-port", callback=_ignore), _hidden("-i", "--ssh-identity-file", callback=_ignore)]
    ignored += [_hidden("-prefix-timestamp", "--prefix-output-with-timestamp", is_flag=True, callback=_ignore)]
    refused = [_hidden(name, callback=_refuse_elastic) for name in _ELASTIC]
    refused += [_hidden("--blacklist-cooldown-range", nargs=2, callback=_refuse_elastic), _hidden("--config-file", callback=_refuse_config)]
    hosts = [_hidden("-H", "--hosts", callback=_hosts), _hidden("-hostfile", "--hostfile", callback=_hosts)]
    mapped = [_hidden(name, callback=_set_knob) for name in _KNOBS]
    mapped += [_hidden("--fusion-threshold-mb", callback=_fusion_threshold), _hidden("--stall-check/--no-stall-check", default=None, callback=_stall_check)]
    return [*ignored, *refused, *hosts, *mapped, _hidden("-cb", "--check-build", is_flag=True, is_eager=True, callback=_check_build)]


def knobs() -> dict[str, str]:
    """The knobs that these options set in the command that is run, as written."""
    found: dict[str, str] = click.get_current_context().meta.get(__name__, {})
    return found


def _hidden(*names: str, **how: Any) -> click.Option:
    return click.Option(names, hidden=True, expose_value=False, **how)


def _is_given(ctx: click.Context, parameter: click.Parameter) -> bool:
    return ctx.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE


def _ignore(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if _is_given(ctx, parameter):
        click.echo(f"hvdliterun: {parameter.opts[-1]} means nothing here and is ignored", err=True)


def _set(ctx: click.Context, knob: str, written: str) -> None:
    settings.parse(knob, written)
    ctx.meta.setdefault(__name__, {})[knob] = written


def _set_knob(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        _set(ctx, _KNOBS[parameter.opts[-1]], value)


def _fusion_threshold(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    try:
        megabytes = float(value)
    except ValueError:
        raise SettingError(f"--fusion-threshold-mb {value} is no number; megabytes are expected; write e.g. --fusion-threshold-mb 32") from None
    _set(ctx, "fusion_threshold_bytes", str(int(megabytes * (1 << 20))))


def _stall_check(ctx: click.Context, _: click.Parameter, value: bool | None) -> None:
    if value is False:
        _set(ctx, "stall_warning_seconds", "0")


def _refuse_elastic(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if _is_given(ctx, parameter):
        raise SettingError(
            f"{parameter.opts[-1]} is for jobs whose number of ranks changes, which this version has not; a fixed number is expected; give -np alone"
        )


def _refuse_config(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if _is_given(ctx, parameter):
        raise SettingError(f"--config-file {value} is not read by hvdliterun; options are expected on the command line; write them there")


def _hosts(_: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    listed = _hosts_in(value) if parameter.opts[-1] == "--hostfile" else value.split(",")
    others = sorted({host.split(":")[0] for host in listed} - {"localhost", "127.0.0.1", platform.node()})
    if others:
        raise SettingError(
            f"{parameter.opts[-1]} names {', '.join(others)}; hvdliterun starts ranks on this machine ({platform.node()}) only; "
            "use mpiexec or srun to start python on several, or leave it out"
        )


def _hosts_in(file_name: str) -> list[str]:
    try:
        with open(file_name, encoding="utf-8") as file:
            return [line.split()[0] for line in file if line.split() and not line.lstrip().startswith("#")]
    except OSError as error:
        raise SettingError(f"--hostfile {file_name} cannot be read ({error.strerror}); a file with a host a line is expected; check the path") from None


def _check_build(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from . import doctor

        ctx.exit(doctor.command.main([], standalone_mode=False))
