"""The archive of Spark's classes: its name, when it is used, what is removed, and that it never stops Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from cq_engine.core.errors import CQError
from cq_engine.core.user_cache import cache_directory
from cq_engine.launch import class_archive, prepare
from cq_engine.launch.class_archive import archive_path, clean, making_options, using_options
from cq_engine.launch.java import Java, find_java
from cq_engine.launch.session import _archive_options, missing_archive

ROOT = Path(__file__).parents[2]


def java(major: int, build: str = "one") -> Java:
    return Java(Path("/opt/java/bin/java"), major, "PATH", build)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"CQ_CACHE_DIR": str(tmp_path / "cache")}


def test_the_cache_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_directory({"CQ_CACHE_DIR": str(tmp_path / "here")}) == tmp_path / "here"
    if sys.platform == "linux":
        assert cache_directory({}) == tmp_path / ".cache" / "cq-engine"
        monkeypatch.setenv("XDG_CACHE_HOME", "/var/x")
        assert cache_directory({}) == Path("/var/x/cq-engine")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # the user has no home
    assert cache_directory({}) is None
    assert archive_path(java(17), {}) is None


def test_the_name_follows_java_and_spark(environ: dict[str, str], tmp_path: Path) -> None:
    first = archive_path(java(17), environ)
    assert first is not None
    assert first.parent == tmp_path / "cache" / "classes"
    assert "-java-17-" in first.name
    assert first == archive_path(java(17), environ)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    others = [
        archive_path(java(17, "two"), environ),
        archive_path(java(21), environ),
        archive_path(java(17), {**environ, "SPARK_HOME": str(tmp_path / "spark")}),
    ]
    assert len({first, *others}) == 4
    assert [path.suffix for path in (first, *others) if path] == [".jsa"] * 4
    newest = archive_path(java(25), environ)
    assert newest is not None
    assert newest.suffix == ".aot"


def test_it_can_be_switched_off_and_needs_a_spark(environ: dict[str, str], tmp_path: Path) -> None:
    assert archive_path(java(17), {**environ, "CQ_CLASS_ARCHIVE": "off"}) is None
    assert archive_path(java(17), {**environ, "SPARK_HOME": str(tmp_path / "nothing")}) is None


def test_the_options(tmp_path: Path) -> None:
    path = tmp_path / "spark-x.jsa"
    assert using_options(None) == []
    assert using_options(path) == []
    path.touch()
    assert using_options(path) == []
    path.write_text("x")
    expected = [f"-XX:SharedArchiveFile={path}", "-Xshare:auto", "-Xlog:disable"]
    assert using_options(path) == expected
    assert using_options(path, None, "-Xmx1g -Dx=y") == expected
    for given in (
        "-Xshare:off",
        "-XX:AOTCache=/x",
        "-XX:SharedArchiveFile=x",
        "-Xlog:gc",
        "-javaagent:x.jar",
    ):
        assert using_options(path, None, given) == []
    aot = path.rename(path.with_suffix(".aot"))
    assert f"-XX:AOTCache={aot}" in using_options(aot)
    assert f"-XX:AOTCacheOutput={aot}" in making_options(aot)
    quoted = tmp_path / 'a"b.jsa'
    quoted.write_text("x")
    assert using_options(quoted) == []


def test_a_callers_options_stay_the_callers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CQ_CACHE_DIR", str(tmp_path / "a folder"))
    monkeypatch.delenv("CQ_CLASS_ARCHIVE")
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    monkeypatch.delenv("JDK_JAVA_OPTIONS", raising=False)
    path = archive_path(java(17))
    assert path is not None
    assert _archive_options(java(17), {}) == ""
    assert missing_archive() == path
    path.parent.mkdir(parents=True)
    path.write_text("x")
    assert f' "-XX:SharedArchiveFile={path}"' in _archive_options(java(17), {})
    assert missing_archive() is None
    assert _archive_options(java(17), {"spark.driver.extraJavaOptions": "-Xshare:off"}) == ""


def test_old_archives_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    now = time.time()
    ages = {
        "spark-4.2-java-17-a.jsa": 300,
        "spark-4.3-java-17-b.jsa": 200,
        "spark-4.3-java-25-c.aot": 100,
        "spark-4.3-java-25-d.aot": 400,
        "spark-4.2-java-17-a.tried": 100_000,
        "spark-4.3-java-17-b.tried": 10,
        "spark-4.2-java-17-a-99.tmp": 5_000,
        "spark-4.3-java-17-b-98.tmp": 10,
        "notes.jsa": 900_000,
    }
    for name, age in ages.items():
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (now - age, now - age))
    clean(tmp_path, tmp_path / "spark-4.3-java-25-d.aot")
    assert {path.name for path in tmp_path.iterdir()} == {
        "spark-4.3-java-25-d.aot",
        "spark-4.3-java-25-c.aot",
        "spark-4.3-java-17-b.tried",
        "spark-4.3-java-17-b-98.tmp",
        "notes.jsa",
    }


@pytest.mark.skipif(os.name == "nt", reason="archives are not made on Windows")
class TestMaking:
    @pytest.fixture
    def started(self, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
        """The processes that would have been started, at a terminal."""

        started: list[list[str]] = []
        monkeypatch.setattr(
            class_archive.subprocess, "Popen", lambda command, **options: started.append(command)
        )
        monkeypatch.setattr(class_archive, "_at_terminal", lambda: True)
        return started

    def test_it_starts_once_a_day(self, started: list[list[str]], tmp_path: Path) -> None:
        path = tmp_path / "classes" / "spark-x.jsa"
        assert class_archive.make_later(path, {})
        assert started == [[sys.executable, "-m", "cq_engine.launch.prepare"]]
        class_archive.tried_path(path).touch()
        assert not class_archive.make_later(path, {})
        long_ago = time.time() - 100_000
        os.utime(class_archive.tried_path(path), (long_ago, long_ago))
        assert class_archive.make_later(path, {})
        path.write_text("x")
        assert not class_archive.make_later(path, {})

    @pytest.mark.parametrize("environ", [{"CI": "true"}, {"CQ_CLASS_ARCHIVE": "off"}])
    def test_it_does_not_start_where_it_is_not_wanted(
        self, started: list[list[str]], tmp_path: Path, environ: dict[str, str]
    ) -> None:
        assert not class_archive.make_later(tmp_path / "spark-x.jsa", environ)
        assert not class_archive.make_later(None, {})
        (tmp_path / "file").touch()
        assert not class_archive.make_later(tmp_path / "file" / "spark-x.jsa", {})
        assert started == []

    def test_nothing_starts_without_a_terminal(
        self, started: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.undo()
        monkeypatch.setattr(
            class_archive.subprocess, "Popen", lambda command, **options: started.append(command)
        )
        terminal = SimpleNamespace(isatty=lambda: True)
        for stdin, stderr in ((None, terminal), (terminal, SimpleNamespace(isatty=lambda: False))):
            monkeypatch.setattr(sys, "stdin", stdin)
            monkeypatch.setattr(sys, "stderr", stderr)
            assert not class_archive.make_later(tmp_path / "spark-x.jsa", {})
        assert started == []
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdin", terminal)
        assert class_archive.make_later(tmp_path / "spark-x.jsa", {})

    @pytest.fixture
    def wanted(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
        monkeypatch.setenv("CQ_CACHE_DIR", str(tmp_path / "cache"))
        monkeypatch.delenv("CQ_CLASS_ARCHIVE")
        path = archive_path(find_java())
        assert path is not None
        return path

    @staticmethod
    def writing(content: bytes) -> Callable[[list[str]], str]:
        """In place of the training run: writes this as the archive that it was asked for."""

        def run(command: list[str]) -> str:
            target = command[-1].split("=", 1)[1].split(" ", 1)[0]
            Path(target).write_bytes(content)
            return "what it printed"

        return run

    def test_an_archive_appears_whole_and_older_ones_go(
        self, wanted: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wanted.parent.mkdir(parents=True)
        for name in ("spark-1-java-17-a.jsa", "spark-2-java-17-a.jsa"):
            (wanted.parent / name).touch()
        monkeypatch.setattr(prepare, "_run_limited", self.writing(b"x" * 2_000_000))
        assert prepare.make() == wanted
        assert wanted.stat().st_size == 2_000_000
        assert len(list(wanted.parent.iterdir())) == 3  # with one older archive and the lock
        monkeypatch.setattr(prepare, "_run_limited", self.writing(b""))
        assert prepare.make() == wanted
        assert wanted.stat().st_size == 2_000_000

    def test_a_failure_leaves_a_mark_and_no_archive(
        self, wanted: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(prepare, "_run_limited", self.writing(b"too short"))
        with pytest.raises(CQError, match="Java wrote no archive") as raised:
            prepare.make()
        assert raised.value.detail == "what it printed"
        assert {path.name for path in wanted.parent.iterdir()} == {
            "lock",
            class_archive.tried_path(wanted).name,
        }

    def test_a_second_process_leaves(self, wanted: Path) -> None:
        wanted.parent.mkdir(parents=True)
        with (
            prepare._alone(wanted.parent / "lock"),
            pytest.raises(CQError, match="another process makes the archive"),
        ):
            prepare.make()
        assert not wanted.exists()

    def test_a_directory_that_cannot_be_made_is_an_error(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("CQ_CACHE_DIR", str(tmp_path / "file"))
        monkeypatch.delenv("CQ_CLASS_ARCHIVE")
        with pytest.raises(CQError, match="cannot write the archive"):
            prepare.make()
        monkeypatch.setenv("CQ_CLASS_ARCHIVE", "off")
        with pytest.raises(CQError, match="no place for the archive"):
            prepare.make()

    def test_spark_starts_quietly_with_a_broken_archive(self, wanted: Path) -> None:
        """In a process of its own, with the Java that sessions use here."""
        wanted.parent.mkdir(parents=True)
        wanted.write_bytes(os.urandom(3_000_000))
        program = (
            "import warnings; warnings.simplefilter('ignore')\n"
            "from cq_engine.launch.session import missing_archive, spark_session\n"
            "spark = spark_session({'spark.master': 'local[1]', 'spark.driver.memory': '1g'})\n"
            "assert missing_archive() is None\n"
            "print(spark.conf.get('spark.driver.defaultJavaOptions'))\n"
            "print(spark.range(3).count())\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        options, count = done.stdout.splitlines()
        assert str(wanted) in options
        assert count == "3"
        assert done.stderr == ""
