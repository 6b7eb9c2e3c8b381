"""A standalone cluster of Spark's own for tests: a master, and workers that share no directory with it or each other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from cq_engine.launch.java import launch_environment
from tests.brokers import free_port

__all__ = ["DRIVER", "Cluster", "cluster", "connect_server", "end_in_order", "run_program"]

ROOT = Path(__file__).parents[1]
DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.memory": "768m",
}
"""What a session needs besides the master, where the host's own name need not resolve."""
_SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@dataclass
class Cluster:
    """A master at `url` with its workers; each has a directory below `directory`."""

    directory: Path
    environment: dict[str, str]
    port: int
    web: int
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    def add_worker(self, cores: int = 1, memory: str = "1g", cpu: int | None = None) -> None:
        """Starts one more worker; not waited for. With `cpu` it and its executors, their compilers and collectors of garbage included, run on
        that one of the machine's processors only, as in a container of one core."""
        place = self.directory / f"worker{len(self.workers)}"
        own = {name: str(place / name.lower()) for name in ("TMPDIR", "SPARK_LOCAL_DIRS")}
        for path in own.values():
            Path(path).mkdir(parents=True)
        words = ["--host", "127.0.0.1", "--cores", str(cores), "--memory", memory, "--webui-port", "0"]
        words += ["--work-dir", str(place / "work"), self.url]
        self.workers.append(self._start("worker.Worker", words, own))
        if cpu is not None:
            os.sched_setaffinity(self.workers[-1].pid, {cpu})

    def kill_worker(self, number: int) -> None:
        """Ends a worker with its executors, which have no time to say goodbye."""
        with suppress(ProcessLookupError):
            os.killpg(self.workers[number].pid, signal.SIGKILL)
        self.workers[number].wait()

    def stall_worker(self, number: int, seconds: float) -> None:
        """Stops a worker with its executors for a while."""
        group = self.workers[number].pid
        os.killpg(group, signal.SIGSTOP)
        time.sleep(seconds)
        os.killpg(group, signal.SIGCONT)

    def wait_for(self, workers: int, seconds: float = 60) -> None:
        """Until so many workers are registered."""
        end = time.monotonic() + seconds
        while True:
            with (
                suppress(OSError, json.JSONDecodeError),  # `/` answers for `/json/` until the page has both
                urllib.request.urlopen(f"http://127.0.0.1:{self.web}/json/", timeout=5) as found,
            ):
                if json.loads(found.read())["aliveworkers"] >= workers:
                    return
            if time.monotonic() > end:
                raise TimeoutError(f"the cluster has not {workers} workers; see {self.directory}")
            time.sleep(0.1)

    def _start(self, name: str, words: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        log = self.directory / f"{name}.{len(self.workers)}.log"
        with log.open("wb") as out:
            return subprocess.Popen(
                ["bash", str(_SPARK_CLASS), f"org.apache.spark.deploy.{name}", *words],
                env={**self.environment, **more},
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


@contextmanager
def cluster(
    directory: Path, workers: int = 2, cores: int = 1, memory: str = "1g", pinned: bool = False
) -> Iterator[Cluster]:
    """Starts a master and workers, and ends them. `pinned`: each worker has a processor of its own, beginning with the last."""
    with ExitStack() as opened:
        opened.enter_context(launch_environment(directory))
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m",
            "AWS_EC2_METADATA_DISABLED": "true", "SPARK_SUBMIT_OPTS": "",
        }  # fmt: skip
        made = Cluster(directory, environment, free_port(), free_port())
        words = ["--host", "127.0.0.1", "--port", str(made.port), "--webui-port", str(made.web)]
        master = made._start("master.Master", words, {})
        try:
            made.wait_for(0)
            processors = sorted(os.sched_getaffinity(0), reverse=True) if pinned else []
            for number in range(workers):
                made.add_worker(cores, memory, processors[number % len(processors)] if processors else None)
            made.wait_for(workers)
            yield made
        finally:
            for process in (*made.workers, master):
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def connect_server(directory: Path, port: int | None = None, master: str = "local[2]") -> Iterator[str]:
    """A server of Spark Connect in a process of its own; its URL."""
    port = port or free_port()
    (directory / "tmp").mkdir(exist_ok=True)
    words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", master]
    for name, value in {
        "spark.connect.grpc.binding.port": port, "spark.ui.enabled": "false", "spark.driver.memory": "1536m",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }.items():  # fmt: skip
        words += ["--conf", f"{name}={value}"]
    with launch_environment(directory), (directory / "connect.log").open("ab") as log:
        server = subprocess.Popen(
            ["bash", str(_SPARK_CLASS), "org.apache.spark.deploy.SparkSubmit", *words, "spark-internal"],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
                "TMPDIR": str(directory / "tmp"),
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            _wait_for_port(port, server, directory / "connect.log")
            yield f"sc://127.0.0.1:{port}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait_for_port(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        if server.poll() is not None or time.monotonic() > end:
            raise TimeoutError(log.read_text(errors="replace")[-3000:])
        time.sleep(0.1)


def end_in_order() -> None:
    """From now on SIGTERM and SIGINT, which a shell has its background processes ignore, end this process as an exception does:
    no server of its own is left."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)


def run_program(program: str, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a module of the tests in a process of its own, which has a Spark of its own."""
    return subprocess.run(
        [sys.executable, "-m", program, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
