"""Several hosts on one machine: network namespaces on a bridge, each link shaped to a rate. Needs root, ip and tc (Debian: iproute2)."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

BRIDGE = "hvdbr"
SUBNET = "10.78.0"
INTERFACE = "e0"
OUTSIDE = "hvdveth"
"""The bridge's end of a link, and the host's number."""


def why_not() -> str | None:
    """What is missing to make hosts here; None if nothing is."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces; run it with sudo, or in a container as root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"needs {' and '.join(missing)}; apt-get install iproute2" if missing else None


class Hosts:
    """``count`` hosts with links of ``rate`` (as tc writes it: 1gbit, 100mbit), for the length of a with block."""

    def __init__(self, count: int, rate: str):
        self.count, self.rate = count, rate
        self.names = [f"hvdhost{i}" for i in range(count)]
        self.addresses = [f"{SUBNET}.{i + 1}" for i in range(count)]

    def __enter__(self) -> Hosts:
        self._remove()
        self._folder = tempfile.TemporaryDirectory()
        self.shell = self._write_shell(Path(self._folder.name))
        _ip("link", "add", BRIDGE, "type", "bridge")
        _ip("link", "set", BRIDGE, "up")
        for i, (name, address) in enumerate(zip(self.names, self.addresses, strict=True)):
            outside = f"{OUTSIDE}{i}"
            _ip("netns", "add", name)
            _ip("link", "add", outside, "type", "veth", "peer", "name", INTERFACE, "netns", name)
            _ip("link", "set", outside, "master", BRIDGE, "up")
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", INTERFACE)
            for device in (INTERFACE, "lo"):
                _ip("-n", name, "link", "set", device, "up")
            _shape(["tc"], outside, self.rate)
            _shape(["ip", "netns", "exec", name, "tc"], INTERFACE, self.rate)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._remove()
        self._folder.cleanup()

    def on(self, host: int, command: list[str]) -> list[str]:
        """The command, run on one of the hosts."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def mpiexec(self, mpiexec: str, command: list[str]) -> tuple[list[str], dict[str, str]]:
        """One rank on every host under MPICH's launcher: the command line, and what its environment needs."""
        launcher = [mpiexec, "-launcher", "ssh", "-launcher-exec", str(self.shell), "-iface", INTERFACE, "-hosts", ",".join(self.addresses), "-ppn", "1"]
        return self.on(0, [*launcher, "-n", str(self.count), *command]), {"FI_PROVIDER": "tcp", "FI_TCP_IFACE": INTERFACE}

    def sent_bytes(self) -> list[int]:
        """What each host has sent so far, by the kernel's own counter."""
        return [int(_out(self.on(i, ["cat", f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"]))) for i in range(self.count)]

    def _write_shell(self, folder: Path) -> Path:
        """What MPI's launcher takes for ssh: options, an address, a command. The last number of the address is the host."""
        path = folder / "shell"
        path.write_text(
            '#!/bin/bash\nwhile [[ "$1" == -* ]]; do shift; done\nn=$((${1##*.} - 1)); shift\n'
            'exec ip netns exec hvdhost$n unshare --uts --ipc bash -c "hostname hvdhost$n; $*"\n'
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    def _remove(self) -> None:
        for line in _out(["ip", "netns", "list"]).splitlines():
            if line.startswith("hvdhost"):
                _ip("netns", "del", line.split()[0])
        links = [line.split()[1].split("@")[0].rstrip(":") for line in _out(["ip", "-o", "link"]).splitlines()]
        for link in links:  # a namespace goes some time after it was deleted, and would keep its link until then
            if link == BRIDGE or link.startswith(OUTSIDE):
                subprocess.run(["ip", "link", "del", link], stderr=subprocess.DEVNULL, check=False)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def _out(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _shape(tc: list[str], device: str, rate: str) -> None:
    if rate != "none":
        subprocess.run([*tc, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"], check=True)


if __name__ == "__main__":
    sys.exit(why_not() or 0)
