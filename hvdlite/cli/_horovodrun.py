"""horovodrun's options, for ``hvdliterun``: what they mean here, or that they mean nothing.

Those whose names and meaning are ours already (``-np``, ``--output-filename``, ``--cache-capacity``, ``--log-level``, ...) are not listed again.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import click

from .. import settings
from ..errors import SettingError
from ..launch import slots as slots_module

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
_KNOBS = {  # an option whose value is that of a knob under another name
    "--timeline-filename": "timeline",
    "--elastic-timeout": "elastic_timeout_seconds",
    "--stall-check-warning-time-seconds": "stall_warning_seconds",
    "--stall-check-shutdown-time-seconds": "stall_shutdown_seconds",
}


def options() -> list[click.Parameter]:
    """They work and are not shown by ``--help``."""
    ignored = [_hidden(flag, is_flag=True, callback=_ignore) for flag in _IGNORED_FLAGS]
    ignored += [_hidden(name, callback=_ignore) for name in _IGNORED_VALUES]
    ignored += [_hidden("-p", "--ssh-port", callback=_ignore), _hidden("-i", "--ssh-identity-file", callback=_ignore)]
    ignored += [_hidden("-prefix-timestamp", "--prefix-output-with-timestamp", is_flag=True, callback=_ignore)]
    refused = [_hidden("--config-file", callback=_refuse_config)]
    places = [_hidden("-H", "--hosts", callback=_hosts), _hidden("-hostfile", "--hostfile", callback=_hosts)]
    mapped = [_hidden(name, callback=_set_knob) for name in _KNOBS]
    mapped += [_hidden("--fusion-threshold-mb", callback=_fusion_threshold), _hidden("--stall-check/--no-stall-check", default=None, callback=_stall_check)]
    return [*ignored, *refused, *places, *mapped, _hidden("-cb", "--check-build", is_flag=True, is_eager=True, callback=_check_build)]


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


def _refuse_config(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if _is_given(ctx, parameter):
        raise SettingError(f"--config-file {value} is not read by hvdliterun; options are expected on the command line; write them there")


def slots() -> dict[str, int] | None:
    """Slots by host, as ``-H`` or ``-hostfile`` of the command that is run gives them; None without."""
    found: dict[str, int] | None = click.get_current_context().meta.get(f"{__name__}.slots")
    return found


def check_hosts(slots: Mapping[str, int], origin: str) -> None:
    """Refuse hosts that are not this machine.

    Raises:
        SettingError: there are some.
    """
    others = sorted(set(slots) - {"localhost", "127.0.0.1", platform.node()})
    if others:
        raise SettingError(
            f"{origin} names {', '.join(others)}; hvdliterun starts ranks on this machine ({platform.node()}) only; "
            "use mpiexec or srun to start python on several, or leave it out"
        )


def _hosts(ctx: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is None:
        return
    option = parameter.opts[-1]
    text = _text_of(value) if option == "--hostfile" else value.replace(",", "\n")
    found = slots_module.parse(text, 1, value if option == "--hostfile" else option)
    check_hosts(found, option)
    ctx.meta[f"{__name__}.slots"] = found


def _text_of(file_name: str) -> str:
    try:
        with open(file_name, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise SettingError(f"--hostfile {file_name} cannot be read ({error.strerror}); a file with a host a line is expected; check the path") from None


def _check_build(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from . import doctor

        ctx.exit(doctor.command.main([], standalone_mode=False))
