# SPDX-License-Identifier: Apache-2.0
"""A cluster of Slurm on this machine: a controller and several slurmd, in a network of their own that leads nowhere."""
import os
import pathlib
import shutil
import subprocess
import sys
import time

SKIPPED = 77
ADDRESS = "10.211.8.1"  # of all; Slurm does not start with a loopback alone
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue")
PLACES = "/usr/sbin:/usr/local/sbin:/sbin:"  # where Debian has the daemons

CONFIGURATION = """\
ClusterName=sherd
SlurmctldHost=control({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
SlurmctldPort=16817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,sched_min_interval=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait=5
JobRequeue=1
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not():
    """Why there can be no cluster here, or an empty text."""
    if os.geteuid() != 0:
        return "only root may start its daemons here"
    os.environ["PATH"] = PLACES + os.environ["PATH"]
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)} missing (Debian: apt-get install slurm-wlm munge)"
    if " -N node " not in subprocess.run(["slurmd", "-h"], capture_output=True, text=True).stderr + \
            subprocess.run(["slurmd", "-h"], capture_output=True, text=True).stdout:
        return "this slurmd was built without support for several on one machine"
    done = subprocess.run(["unshare", "--net", "--uts", "--pid", "--mount", "--fork", "true"], capture_output=True, text=True)
    return f"namespaces are not allowed here: {done.stderr.strip()}" if done.returncode else ""


def enter():
    """Goes on in namespaces whose processes end with this one."""
    if os.environ.get("SHERD_TEST_CLUSTER") == "1":
        subprocess.run(["sh", "-ec", f"hostname control; ip link set lo up; ip link add eth0 type veth peer name unused; "
                        f"ip addr add {ADDRESS}/24 dev eth0; ip link set eth0 up; ip link set unused up"], check=True)
        return
    if reason := why_not():
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    os.environ["SHERD_TEST_CLUSTER"] = "1"
    os.execvp("unshare", ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
                          sys.executable, *sys.argv])


class Cluster:
    """`with Cluster(place, 2) as cluster:` has the nodes n1 and n2."""

    def __init__(self, place, count):
        self.place, self.names = pathlib.Path(place), [f"n{i + 1}" for i in range(count)]

    def __enter__(self):
        place = self.place
        (place / "state").mkdir()
        nodes = "\n".join(f"NodeName={name} NodeHostname=control NodeAddr={ADDRESS} Port={17001 + i} CPUs=2 State=UNKNOWN"
                          for i, name in enumerate(self.names))
        (place / "slurm.conf").write_text(CONFIGURATION.format(place=place, nodes=nodes, address=ADDRESS))
        (place / "munge.key").write_bytes(os.urandom(128))
        (place / "munge.key").chmod(0o600)
        os.environ["SLURM_CONF"] = str(place / "slurm.conf")
        (place / "hosts").write_text(f"127.0.0.1 localhost\n{ADDRESS} control\n")
        subprocess.run(["mount", "--bind", place / "hosts", "/etc/hosts"], check=True)
        subprocess.run(["munged", "--force", "--key-file", place / "munge.key", "--socket", place / "munge.socket",
                        "--pid-file", place / "munge.pid", "--log-file", place / "munge.log", "--seed-file", place / "munge.seed"],
                       check=True, cwd="/")
        self.daemons = [subprocess.Popen(["slurmctld", "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)]
        for name in self.names:
            self.daemons.append(subprocess.Popen(["slurmd", "-D", "-N", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        end = time.monotonic() + 60
        while self("sinfo", "--noheader", "--format", "%t %D", code=None).split() != ["idle", str(len(self.names))]:
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)
        return self

    def __exit__(self, *_):
        for daemon in self.daemons:
            daemon.terminate()
        for daemon in self.daemons:
            daemon.wait()

    def __call__(self, *words, code=0, **more):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
        assert code is None or done.returncode == code, (words, done.returncode, done.stdout, done.stderr)
        return done.stdout

    def logs(self):
        return "".join(f"== {path.name}\n" + "".join(path.read_text().splitlines(keepends=True)[-30:])
                       for path in sorted(self.place.glob("*.log")))

    def state(self, job):
        """Such as RUNNING; and how often it was queued again."""
        words = dict(pair.split("=", 1) for pair in self("scontrol", "--oneliner", "show", "job", job).split() if "=" in pair)
        return words["JobState"], int(words["Restarts"])
