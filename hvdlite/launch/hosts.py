"""Several hosts on one machine: network namespaces joined by a switch, each link shaped to a rate and a delay.

Linux' own commands do it (``unshare`` and ``nsenter`` of util-linux, ``ip`` and ``tc`` of iproute2), since MPI's launchers need a command to enter a host
anyway. The namespaces have no names: a process holds each of them, which ends when its pipe to us does. It kills what is left inside, and the kernel removes
them, however we end; jobs beside each other do not meet.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ..errors import LaunchError
from ..link import Link

INTERFACE = "e0"
"""A host's one interface, beside its own loopback."""
_SUBNET = "10.78.0"
_MAX_HOSTS = 250
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
_BURST_SECONDS, _LEAST_BURST_BYTES = 1e-3, 16 << 10  # what a link may send at once after a pause: little, or small payloads would cost nothing
_QUEUE_MS = 50  # of a switch's port; more is dropped
_QUEUE_PACKETS = 100_000  # in delay: more than any link here holds
_SECONDS = 20.0
# What a holder does last. A daemon of MPI's launcher that lost it (kill -9) may not notice, and would keep its host and its ranks.
_SWEEP = (
    "n=$(readlink /proc/self/ns/net); n=${n#net:?}; n=${n%?}; "
    'for p in $(find /proc/[0-9]*/ns/net -maxdepth 0 -lname "net:?$n?" 2>/dev/null); do '
    "p=${p#/proc/}; p=${p%/ns/net}; [ $p = $$ ] || kill -9 $p; done 2>/dev/null"
)


def why_not() -> str | None:
    """What keeps this machine from having hosts, and what to do; None if nothing does, as far as one can tell without trying."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no network namespaces; Linux is expected; run it there, or on the real network without --link"
    if os.geteuid() != 0:
        return "network namespaces need root; a root shell or container is expected; run it with sudo -E, or on the real network without --link"
    missing = sorted(tool for tool in _TOOLS if shutil.which(tool) is None)
    if missing:
        packages = " ".join(sorted({_TOOLS[tool] for tool in missing}))
        return f"{' and '.join(missing)} not found; Linux' network tools are expected on PATH; run apt-get install {packages}"
    return None


class Hosts:
    """``count`` hosts, for the length of a ``with`` block.

    Args:
        count: number of hosts, at most 250.
        link: what joins each of them to the switch, alike in both directions; None: as fast as the machine is.
    Raises:
        LaunchError: this machine cannot have them; the message says what to do.
    """

    def __init__(self, count: int, link: Link | None):
        if not 1 <= count <= _MAX_HOSTS:
            raise LaunchError(f"{count} hosts cannot be made; 1 to {_MAX_HOSTS} are expected; choose another number")
        self.count, self.link = count, link
        self.names = [f"hvdhost{i}" for i in range(count)]
        self.addresses = [f"{_SUBNET}.{i + 1}" for i in range(count)]
        self._holders: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        reason = why_not()
        if reason:
            raise LaunchError(reason)
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()

    def on(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs ``command`` on a host."""
        return [*_entering(self._hosts[host].pid), *command]

    def sent_bytes(self, host: int) -> int:
        """What a host has sent so far, by the kernel's own counter of its interface."""
        return transmitted_bytes(f"/proc/{self._hosts[host].pid}/net/dev")

    def write_shell(self, path: Path) -> None:
        """Write what MPI's launchers take for ssh: called with options, an address and a command, it runs the command on that host."""
        cases = [f"{address}|{name}) p={holder.pid} ;;" for address, name, holder in zip(self.addresses, self.names, self._hosts, strict=True)]
        unknown = '*) echo "$1 is none of these hosts" >&2; exit 255 ;;'
        enter = " ".join(_entering("$p"))
        lines = ["#!/bin/sh", 'while [ "${1#-}" != "$1" ]; do shift; done', 'case "$1" in', *cases, unknown, "esac", "shift", f'exec {enter} sh -c "$*"']
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        path.chmod(0o700)

    @property
    def _hosts(self) -> list[subprocess.Popen[bytes]]:
        return self._holders[1:]  # the first one is the switch

    def _make(self) -> None:
        for name in ("hvdswitch", *self.names):
            self._hold(name)
        switch = _entering(self._holders[0].pid)
        _call([*switch, "ip", "link", "add", "br0", "type", "bridge"])
        _call([*switch, "ip", "link", "set", "br0", "up"])
        for i, (holder, address) in enumerate(zip(self._hosts, self.addresses, strict=True)):
            port, host = f"port{i}", _entering(holder.pid)
            _call([*switch, "ip", "link", "add", port, "type", "veth", "peer", "name", INTERFACE, "netns", str(holder.pid)])
            _call([*switch, "ip", "link", "set", port, "master", "br0", "up"])
            _call([*host, "ip", "addr", "add", f"{address}/24", "dev", INTERFACE])
            for device in ("lo", INTERFACE):
                _call([*host, "ip", "link", "set", device, "up"])
            if self.link is not None:
                _shape(switch, port, Link(self.link.bits_per_second))
                _shape(host, INTERFACE, self.link)

    def _hold(self, name: str) -> None:
        """Start a process in new namespaces, which stays until we close its stdin or end."""
        script = f"mount -t sysfs sysfs /sys && echo {name} > /proc/sys/kernel/hostname && echo ready && {{ cat; {_SWEEP}; }}"  # MPICH finds interfaces in /sys
        words = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", script]
        holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self._holders.append(holder)
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"ready\n":
            raise _refused(words[:5], holder.stderr.read().decode("utf-8", "replace"))

    def _remove(self) -> None:
        for holder in reversed(self._holders):
            for stream in (holder.stdin, holder.stdout, holder.stderr):
                if stream is not None:
                    stream.close()
        for holder in self._holders:
            with contextlib.suppress(subprocess.TimeoutExpired):
                holder.wait(_SECONDS)
            holder.kill()
            holder.wait()
        self._holders = []


def transmitted_bytes(table: str = "/proc/net/dev") -> int:
    """What :data:`INTERFACE` has sent, by the kernel's own counter; ``table`` is that of a process on the host, by default this one."""
    for line in Path(table).read_text(encoding="ascii").splitlines():
        name, _, figures = line.partition(":")
        if name.strip() == INTERFACE:
            return int(figures.split()[8])
    raise LaunchError(f"{table} lists no interface {INTERFACE}; that of a host made by --link is expected; ask on one")


def _entering(pid: int | str) -> list[str]:
    return ["nsenter", f"--target={pid}", "--net", "--uts", "--ipc", "--mount", "--wd", "--"]


def burst_bytes(link: Link) -> int:
    """What a link made here takes at once after a pause."""
    return max(_LEAST_BURST_BYTES, round(link.bits_per_second / 8 * _BURST_SECONDS))


def _shape(inside: Sequence[str], device: str, link: Link) -> None:
    where = ["root"]
    if link.delay_seconds:
        delay = ["netem", "delay", f"{link.delay_seconds * 1e6:.0f}us", "limit", str(_QUEUE_PACKETS)]
        _call([*inside, "tc", "qdisc", "add", "dev", device, "root", "handle", "1:", *delay])
        where = ["parent", "1:1"]
    rate = ["tbf", "rate", f"{link.bits_per_second:.0f}bit", "burst", str(burst_bytes(link)), "latency", f"{_QUEUE_MS}ms"]
    _call([*inside, "tc", "qdisc", "add", "dev", device, *where, *rate])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise _refused(command, done.stderr)


def _refused(command: Sequence[str], said: str) -> LaunchError:
    words = " ".join(said.split()) or "no reason given"
    if "netem" in command:
        return LaunchError(
            f"this kernel delays no packets ({words}); its module sch_netem is expected; run modprobe sch_netem, or leave delay= out of the link"
        )
    return LaunchError(
        f"this machine makes no network namespaces with shaped links: {' '.join(command)} says {words!r}; a kernel with veth, bridge and sch_tbf "
        "and the capabilities SYS_ADMIN and NET_ADMIN are expected; run a container with them (docker run --privileged), or run without --link"
    )
