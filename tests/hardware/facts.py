"""What a host is, as far as it can be read without changing anything."""

import glob
import ipaddress
import json
import os
import platform
import re
import shutil
import subprocess

SYSFS = "/sys/class/infiniband"


class NoDevice(Exception):
    """There is no such device, port or address; the text is for the user."""


def read(path):
    """The first line of a file; None if there is none."""
    try:
        with open(path, errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None


def output(*command):
    """What a command prints; None if it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, timeout=20,
                              universal_newlines=True, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


class Device:
    """A port of an RDMA device: `mlx5_0` or `mlx5_0/2`."""

    def __init__(self, name):
        self.name, _, port = name.partition("/")
        self.port = int(port or 1)
        self.directory = f"{SYSFS}/{self.name}"
        if not os.path.exists(self.directory):
            there = sorted(os.listdir(SYSFS)) if os.path.isdir(SYSFS) else []
            raise NoDevice(f"{self.name}: no such RDMA device here; there are: "
                           + (" ".join(there) or "none"))
        self.ports = f"{self.directory}/ports/{self.port}"
        if not os.path.exists(self.ports):
            raise NoDevice(f"{self.name} has no port {self.port}")
        self.netdev = self._netdev()

    def _netdev(self):
        links = output("rdma", "link", "show", f"{self.name}/{self.port}")
        found = re.search(r"\bnetdev (\S+)", links or "")
        if found:
            return found[1]
        name = read(f"{self.ports}/gid_attrs/ndevs/0")
        if name:
            return name
        # A port of InfiniBand has IPoIB's of the same function, which counts
        # ports from 0.
        for path in sorted(glob.glob(f"{self.directory}/device/net/*")):
            if read(f"{path}/dev_port") == str(self.port - 1):
                return os.path.basename(path)
        raise NoDevice(f"{self.name}: port {self.port} has no network device; "
                       "with InfiniBand, configure IPoIB")

    def addresses(self):
        """The global addresses of the network device, IPv4 first."""
        text = output("ip", "-o", "addr", "show", "dev", self.netdev, "scope",
                      "global") or ""
        found = [ipaddress.ip_interface(address) for address in
                 re.findall(r"\binet6? (\S+)", text)]
        return sorted(found, key=lambda address: address.version)

    def address(self, near=None):
        """One of them: in the network of `near`, if there is such a one."""
        addresses = self.addresses()
        if near is not None:
            near = ipaddress.ip_address(near)
            for address in addresses:
                if near in address.network:
                    return str(address.ip)
            addresses = [a for a in addresses if a.version == near.version]
        if not addresses:
            raise NoDevice(f"{self.name}: {self.netdev} has no address")
        return str(addresses[0].ip)

    def pci(self):
        """The PCI function's directory; None for a device in software."""
        path = os.path.realpath(f"{self.directory}/device")
        return path if os.path.exists(f"{path}/vendor") else None

    def counters(self):
        """What the device counts: errors and retries among it."""
        found = {}
        for path in glob.glob(f"{self.ports}/hw_counters/*") + glob.glob(
                f"{self.ports}/counters/*"):
            text = read(path)
            if text is not None and text.isdigit():
                found[os.path.basename(path)] = int(text)
        return found


def gids(device):
    """Index, type and kind of each; not the GID, which names the host."""
    found = []
    for path in sorted(glob.glob(f"{device.ports}/gids/*"),
                       key=lambda p: int(os.path.basename(p))):
        gid = read(path)
        index = os.path.basename(path)
        if gid is None or not gid.replace(":", "").strip("0"):
            continue
        kind = ("IPv4" if gid.startswith("0000:0000:0000:0000:0000:ffff:")
                else "link-local" if gid.startswith("fe80:") else "IPv6")
        found.append({"index": int(index), "kind": kind, "type": read(
            f"{device.ports}/gid_attrs/types/{index}")})
    return found


def port_facts(device):
    ports = device.ports
    verbose = output("ibv_devinfo", "-v", "-d", device.name, "-i",
                     str(device.port)) or ""

    def of(name):
        found = re.search(rf"^\s*{name}:\s*(.+)$", verbose, re.MULTILINE)
        return found[1].strip() if found else None

    return {
        "state": read(f"{ports}/state"),
        "rate": read(f"{ports}/rate"),
        "link_layer": read(f"{ports}/link_layer"),
        "active_mtu": of("active_mtu"),
        "netdev_mtu": read(f"/sys/class/net/{device.netdev}/mtu"),
        "bonded": os.path.exists(f"/sys/class/net/{device.netdev}/bonding"),
        "gids": gids(device),
        "limits": {name: of(name) for name in (
            "max_qp", "max_qp_wr", "max_srq", "max_srq_wr", "max_cqe",
            "max_mr", "num_comp_vectors")},
    }


def pci_facts(device):
    path = device.pci()
    if path is None:
        return None
    return {name: read(f"{path}/{name}") for name in (
        "vendor", "device", "numa_node", "local_cpulist", "current_link_speed",
        "current_link_width")}


def qos_facts(device):
    """PFC, ECN and what rdma_cm marks; each null where it cannot be read."""
    net = f"/sys/class/net/{device.netdev}"

    def enabled(point):
        return {os.path.basename(path): read(path) for path in sorted(
            glob.glob(f"{net}/ecn/{point}/enable/*"))} or None

    tos = f"/sys/kernel/config/rdma_cm/{device.name}/ports/{device.port}"
    registers = None
    if device.pci() is not None:
        slot = os.path.basename(device.pci())
        for tool in "mlxreg", "mstreg":
            registers = registers or output(tool, "-d", slot, "--reg_name",
                                            "ROCE_ACCL", "--get")
    return {
        "pfc": output("dcb", "pfc", "show", "dev", device.netdev),
        "mlnx_qos": output("mlnx_qos", "-i", device.netdev),
        "global_pause": output("ethtool", "-a", device.netdev),
        "trust": read(f"{net}/qos/trust"),
        "ecn_notification": enabled("roce_np"),
        "ecn_reaction": enabled("roce_rp"),
        "default_roce_tos": read(f"{tos}/default_roce_tos"),
        "default_roce_mode": read(f"{tos}/default_roce_mode"),
        "roce_accl": registers,
    }


def package(*names):
    for name in names:
        version = output("dpkg-query", "-W", "-f=${Version}", name) or output(
            "rpm", "-q", "--qf", "%{VERSION}-%{RELEASE}", name)
        if version:
            return f"{name} {version}"
    return None


def distribution():
    try:
        with open("/etc/os-release") as file:
            return re.search(r'^PRETTY_NAME="?([^"\n]*)', file.read(),
                             re.MULTILINE)[1]
    except (OSError, TypeError):
        return None


def cpu():
    try:
        with open("/proc/cpuinfo") as file:
            return re.search(r"^model name\s*: (.*)$", file.read(),
                             re.MULTILINE)[1]
    except (OSError, TypeError):
        return None


def of_host(device):
    """All of it, as JSON can have it."""
    link = os.path.realpath(f"{device.directory}/device/driver")
    options = [word for word in (read("/proc/cmdline") or "").split()
               if "iommu" in word or word.startswith("mitigations")]
    return {
        "device": {
            "name": device.name,
            "node_type": read(f"{device.directory}/node_type"),
            "firmware": read(f"{device.directory}/fw_ver"),
            "board": read(f"{device.directory}/board_id"),
            "hca_type": read(f"{device.directory}/hca_type"),
            "driver": os.path.basename(link) if os.path.exists(link) else None,
            "pci": pci_facts(device),
        },
        "port": port_facts(device),
        "qos": qos_facts(device),
        "kernel": platform.release(),
        "distribution": distribution(),
        "rdma_core": package("libibverbs1", "libibverbs", "rdma-core"),
        "ofed": output("ofed_info", "-s"),
        "perftest": package("perftest"),
        "cpu": cpu(),
        "cpus": os.cpu_count(),
        "governor": read(
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "kernel_options": options,
        "netns_mode": output("rdma", "system"),
        "root": os.geteuid() == 0,
    }


if __name__ == "__main__":
    import sys
    print(json.dumps(of_host(Device(sys.argv[1])), indent=2))
