# SPDX-License-Identifier: Apache-2.0
"""Hosts made of namespaces: each has its own network, address, host name and /dev/shm; a bridge joins them.

Nothing leaves this machine, or even reaches its own network: the bridge is in a namespace of its own.
"""
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77  # exit code; SKIP_RETURN_CODE in tests/CMakeLists.txt
AGENT = pathlib.Path(__file__).with_name("launch_agent.py")
NETWORK = "10.211.7."


def why_not():
    """Why this process can't make hosts, or an empty text."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    for program in ("unshare", "nsenter", "ip", "tc"):
        if subprocess.run(["sh", "-c", f"command -v {program}"], stdout=subprocess.DEVNULL).returncode != 0:
            return f"the program {program} is missing (Debian: util-linux, iproute2)"
    script = "ip link add veth0 type veth peer name veth1 && ip link add bridge0 type bridge && tc qdisc add dev veth0 root tbf rate 1gbit burst 256kb latency 50ms"
    done = subprocess.run(["unshare", "--net", "--uts", "--mount", "sh", "-c", script], capture_output=True, text=True)
    return f"namespaces, or links and rates in them, are not allowed here: {done.stderr.strip()}" if done.returncode else ""


def exit_if_impossible():
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)


class Hosts:
    """`with Hosts(2, rate="1gbit") as hosts:` makes node1 and node2, and ends all that runs in them."""

    def __init__(self, count, rate=None):
        self.names = [f"node{i + 1}" for i in range(count)]
        self.addresses = [f"{NETWORK}{i + 1}" for i in range(count)]
        self.rate = rate

    def __enter__(self):
        self.place = tempfile.TemporaryDirectory()
        names = pathlib.Path(self.place.name) / "hosts"
        names.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(self.addresses, self.names)))
        self.bridge = self._hold(["--net"])
        self.holders = [self._hold(["--net", "--uts", "--mount"]) for _ in self.names]
        self._in(self.bridge, "ip link add bridge0 type bridge && ip link set bridge0 up && ip link set lo up")
        for i, (name, address) in enumerate(zip(self.names, self.addresses)):
            holder = self.holders[i]
            self._in(self.bridge, f"ip link add port{i} type veth peer name eth0 netns {holder.pid} && "
                                  f"ip link set port{i} master bridge0 up")
            self._in(holder, f"hostname {name}; ip link set lo up; ip addr add {address}/24 dev eth0; ip link set eth0 up; "
                             f"mount -t tmpfs tmpfs /dev/shm; mount --bind {names} /etc/hosts")
        if self.rate:
            self.set_rate(self.rate)
        return self

    def __exit__(self, *_):
        for holder in [*self.holders, self.bridge]:
            for process in self.processes(holder):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            holder.kill()
            holder.wait()
        self.place.cleanup()

    def _hold(self, kinds):
        def die_with_us():
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        process = subprocess.Popen(["unshare", *kinds, "sleep", "infinity"], preexec_fn=die_with_us,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert time.monotonic() < end and process.poll() is None, "no namespace"
            time.sleep(0.01)
        return process

    def _in(self, holder, script):
        mine = ["nsenter", "--target", str(holder.pid), "--net"]
        if holder is not self.bridge:
            mine += ["--uts", "--mount"]
        subprocess.run([*mine, "sh", "-ec", script], check=True)

    @staticmethod
    def processes(holder):
        """All processes in a host, but the one that holds it."""
        own, found = os.readlink(f"/proc/{holder.pid}/ns/net"), []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/net") == own and int(entry.name) != holder.pid:
                    found.append(int(entry.name))
            except OSError:
                pass
        return found

    def ranks(self, host):
        """The processes of the ranks on a host, by rank."""
        found = {}
        for process in self.processes(self.holders[host]):
            try:
                variables = dict(pair.split("=", 1) for pair in
                                 pathlib.Path(f"/proc/{process}/environ").read_text().split("\0") if "=" in pair)
                program = os.readlink(f"/proc/{process}/exe")
            except (OSError, UnicodeDecodeError):
                continue
            rank = variables.get("OMPI_COMM_WORLD_RANK", variables.get("RANK"))
            if rank is not None and program.endswith("/sherd"):
                found[int(rank)] = process
        return found

    def on(self, host, words):
        """A command that runs words on a host."""
        return ["nsenter", "--target", str(self.holders[host].pid), "--net", "--uts", "--mount", "--wd=" + os.getcwd(), *map(str, words)]

    def set_rate(self, rate):
        for holder in self.holders:
            self._in(holder, f"tc qdisc replace dev eth0 root tbf rate {rate} burst 256kb latency 50ms")

    def set_link(self, host, state):
        """Takes a host's link down, or up again: 'down' or 'up'."""
        self._in(self.bridge, f"ip link set port{host} {state}")

    def mpirun(self, mpirun, per_host, words):
        """mpirun on the first host, which starts ranks on all of them."""
        variables = {"OMPI_ALLOW_RUN_AS_ROOT": 1, "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": 1, "OMPI_MCA_plm": "rsh",
                     "OMPI_MCA_plm_rsh_agent": AGENT, "OMPI_MCA_oob_tcp_if_include": "eth0",
                     "OMPI_MCA_btl_tcp_if_include": "eth0", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_pml": "ob1",
                     "SHERD_TEST_HOSTS": ",".join(f"{n}={h.pid}" for n, h in zip(self.names, self.holders))}
        places = ",".join(f"{name}:{per_host}" for name in self.names)
        return self.on(0, ["env", *(f"{k}={v}" for k, v in variables.items()), mpirun, "--quiet", "--host", places, "-n",
                           per_host * len(self.names), "--bind-to", "none", *words])

    def by_hand(self, per_host, words, port=29400):
        """Each rank by a command of its own: a list of commands, by rank."""
        size, commands = per_host * len(self.names), []
        for rank in range(size):
            variables = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank % per_host, "LOCAL_WORLD_SIZE": per_host,
                         "MASTER_ADDR": self.names[0], "MASTER_PORT": port}
            commands.append(self.on(rank // per_host, ["env", *(f"{k}={v}" for k, v in variables.items()), *words]))
        return commands

    def torchrun(self, python, per_host, words, port=29500, more=()):
        """One torchrun for each host."""
        return [self.on(i, [python, "-m", "torch.distributed.run", "--no-python", "--nnodes", len(self.names),
                            "--nproc-per-node", per_host, "--rdzv-backend", "c10d", "--rdzv-id", "hosts",
                            "--rdzv-endpoint", f"{self.names[0]}:{port}", "--local-addr", self.addresses[i], *more, *words])
                for i in range(len(self.names))]
