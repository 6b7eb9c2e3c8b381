"""One world replayed by the engine: queries come, are refreshed, redefined and go; limits move; the engine is reopened."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from cq_engine import AnalysisError, ConstraintError, CQError
from cq_engine.core import beside
from tests.adversary.history import Addition, Transaction
from tests.adversary.oracles import normal
from tests.adversary.paths import some_paths
from tests.adversary.recorder import Recorder
from tests.adversary.twists import SOURCE, expanded, named, needed
from tests.adversary.watched import Judge, Sources, Tally, Watched, whole
from tests.adversary.world import World
from tests.limits import many_rows
from tests.oracle.law import Broken, difference
from tests.oracle.tally import shapes_of

__all__ = ["Episode"]

OPTIONS = (
    "", "", "", "WITH (query_group = 'off')", "WITH (query_group = 'off')", "WITH (query_group = 'on')", "WITH (form = 'general')", "WITH (form = 'fk_pk')",
    "WITH (form = 'fk_pk_units')", "WITH (pre_image = 'sql')", "WITH (refresh = 'full')",
)  # fmt: skip
COMPRESSED_OPTIONS = (*OPTIONS, "WITH (form = 'recompute')", "WITH (form = 'recompute')")


class Episode:
    """Replays `world`; what is wrong goes to `tally.faults`. With `only`, queries of these numbers alone are created."""

    def __init__(
        self,
        world: World,
        spark: SparkSession,
        directory: Path,
        tally: Tally,
        only: set[int] | None = None,
        stand_in: Any = None,
    ) -> None:
        self.world = world
        self.tally = tally
        self.only = only
        self.random = random.Random(f"{world.seed}/episode")
        self.paths = some_paths(self.random)
        self.image = 0
        self.stage = 0
        """How many tables have got a column."""
        self.recorder = Recorder(directory, spark, self._bounds(), stand_in)
        self.judge = Judge(world, self.recorder, tally)
        self.watched: list[Watched] = []
        self.waiting: list[tuple[int, int]] = []
        """Queries (number, variant) that are created later."""

    def _bounds(self) -> dict[str, Any]:
        taken = [(name, path) for name, path in self.paths if self.random.random() < 0.5]
        self.tally.paths.update(name for name, _ in taken)
        return {key: value for _, path in taken for key, value in path.items()}

    # ------------------------------------------------------------ the course of things

    def run(self) -> None:
        """Plays the world to its end."""
        try:
            with many_rows(random.Random(f"{self.world.seed}/beside").choice((0, beside.MANY_ROWS))):
                self._play()
        except Exception as problem:  # noqa: BLE001 - whatever it is, it is a fault to be shown
            self._fault("the world", problem)
        finally:
            self.recorder.engine.close()
            self.world.copies.close()

    def _play(self) -> None:
        for table in self.world.stages[0]:
            self.recorder.execute(table.create())
        steps = iter(self.world.steps)
        self._commit(next(steps))
        for number, texts in enumerate(self.world.queries):
            self.tally.shapes.update(shapes_of(texts[0]))
            for variant in range(len(texts)):
                if variant == 0 or self.random.random() < 0.4:
                    self.waiting.append((number, variant))
        for number, variant in [w for w in self.waiting if w[1] == 0 and self.random.random() < 0.8]:
            if self._ready(number, variant):
                self._create(number, variant)
        for step in steps:
            self._commit(step)
            self._between()
        for each in list(self.watched):
            self._guarded(each, lambda each=each: self._finish(each))
        self._check_tables(self.image)

    def _between(self) -> None:
        """After a commit: refreshes, and now and then what else may happen."""
        chance = self.random.random
        share = self.random.choice((0.1, 0.2, 0.6))
        if chance() < 0.3:
            self.recorder.limit(self._bounds())
        for each in list(self.watched):
            if chance() < share:
                self._guarded(each, lambda each=each: each.refresh(self.image))
        ready = [w for w in self.waiting if self._ready(*w)]
        if ready and chance() < 0.35:
            self._create(*ready[0])
        if self.watched and chance() < 0.12:
            self._redefine(self.random.choice(self.watched))
        if len(self.watched) > 3 and chance() < 0.03:
            self._drop(self.random.choice(self.watched))
        if chance() < 0.1:
            self.recorder.execute(f"COMPACT TABLE {self.random.choice(self.world.tables).name}")
        if chance() < 0.1:
            self.recorder.maintain()
        if chance() < 0.04:
            self.recorder.execute("VACUUM")
        if chance() < 0.05:
            self.recorder.reopen()
        if chance() < 0.08:
            self._check_tables(self.random.randint(0, self.image))

    # ------------------------------------------------------------ commits

    def _commit(self, step: Any) -> None:
        if isinstance(step, Addition):
            for statement in step.statements:
                self.recorder.execute(statement)
            self.stage += 1
            self.tally.counts["columns added"] += 1
            return
        if not isinstance(step, Transaction):
            versions = self.recorder.batch(step)
            if len(versions) != len(step.after):
                raise Broken(f"{len(step.after)} source transactions became versions {versions}")
            self.judge.versions += versions
            self.image += len(versions)
            self.tally.counts["batches"] += 1
            return
        self.tally.counts[f"transactions: {step.outcome}"] += 1
        try:
            version = self.recorder.transaction(step)
        except ConstraintError:
            if step.outcome != "refused":
                raise
            return
        if step.outcome == "refused":
            raise Broken(f"a commit that breaks a constraint became version {version}: {step.steps}")
        if step.outcome == "rollback":
            return
        first = not self.judge.versions
        if not first and step.after.same_as(self.world.images[self.image]):
            return
        if version is None:
            raise Broken(f"{step.steps} changed nothing")
        self.judge.versions.append(version)
        self.image += not first

    def _check_tables(self, image: int) -> None:
        """The tables at a version are those of the model."""
        version = self.judge.versions[image]
        for table in self.world.stages[self.stage]:
            rows = self.recorder.quiet(f"SELECT * FROM {table.name} VERSION AS OF {version}")
            wanted, width = self.world.images[image].rows[table.name], len(table.columns)
            problem = difference([normal(r) for r in rows], [normal(r[:width]) for r in wanted])
            self.tally.counts["images of tables"] += 1
            if problem:
                raise Broken(f"{table.name} at version {version}: {problem}")

    # ------------------------------------------------------------ queries

    def _ready(self, number: int, variant: int) -> bool:
        """Whether there is what it reads: columns, other queries."""
        text, there = self.world.queries[number][variant], {each.number for each in self.watched}
        return needed(text) <= self.stage and all(int(found[1]) in there for found in SOURCE.finditer(text))

    def _readers(self, each: Watched) -> list[Watched]:
        return [other for other in self.watched if each in other.upstream]

    def _create(self, number: int, variant: int) -> None:
        """A query in one mode or both; it may begin with a snapshot, or in the past."""
        self.waiting.remove((number, variant))
        if self.only is not None and number not in self.only:
            return
        given = self.world.queries[number][variant]
        text, sources = expanded(given, self.world.stages[self.stage]), self._sources(given)
        try:
            rows = self.judge.begin(whole(text, sources), self.image)
        except CQError as error:
            self.tally.refused[f"Spark: {_line(error)}"] += 1
            return
        self.tally.counts["queries"] += 1
        modes = self.random.choice((["TRANSACTIONAL", "COMPRESSED"], ["TRANSACTIONAL"], ["COMPRESSED"]))
        for mode in modes if variant == 0 else ["TRANSACTIONAL"]:
            name = f"q{number}_{variant}_{mode[:2].lower()}"
            option = self.random.choice(OPTIONS if mode == "TRANSACTIONAL" else COMPRESSED_OPTIONS)
            if len(self.world.queries[number]) == 1 or sources:
                option = option.replace("'on'", "'auto'")
            start = self.random.choice(("", "", "START FROM SNAPSHOT", "START FROM VERSION"))
            at = self.image
            if sources and start.endswith("VERSION"):
                start += f" {self.recorder.engine.catalog.newest_version}"
            elif start.endswith("VERSION"):
                at = self.random.randint(max(0, self.image - 4), self.image)
                start += f" {self.judge.versions[at]}"
            made = f"CREATE CONTINUOUS QUERY {name} COMPUTE {mode} DELTA ON DEMAND {start} {option} AS {_by_names(given, sources)}"
            try:
                self.recorder.execute(made)
                first = (
                    None
                    if start.endswith("SNAPSHOT")
                    else rows
                    if at == self.image
                    else self.judge.by_spark(text, at)
                )
                made_of = Watched(self.judge, name, text, mode, at, first, sources, self.stage)
                for source in made_of.upstream:  # which have been refreshed first
                    source.follow(self.image)
                self._watch(made_of)
            except CQError as error:
                self.tally.refused[_line(error)] += 1
                print(f"refused: {error}\n  {made}", flush=True)
            except Exception as problem:  # noqa: BLE001 - a fault to be shown
                self._fault(made, problem)

    def _sources(self, text: str) -> Sources:
        """One query for each number that the text reads."""
        numbers = dict.fromkeys(int(found[1]) for found in SOURCE.finditer(text))
        return {n: self.random.choice([w for w in self.watched if w.number == n]) for n in numbers}

    def _watch(self, made: Watched) -> None:
        self.watched.append(made)
        self.tally.counts[made.verdict] += 1
        if made.sources:
            self.tally.counts["queries over queries"] += 1

    def _drop(self, each: Watched) -> None:
        """Unless others read it."""
        if not self._readers(each):
            self.watched.remove(each)
            self.recorder.execute(f"DROP CONTINUOUS QUERY {each.name}")

    def _redefine(self, each: Watched) -> None:
        """Another text for it that differs in constants."""
        then, now = self.world.stages[each.stage], self.world.stages[self.stage]
        known = [t for t in self.world.queries[each.number] if needed(t) <= self.stage]
        others = [t for t in known if expanded(t, then) != each.text]
        if not others:
            return
        other = self.random.choice(others)
        readers, text = self._readers(each), expanded(other, then)

        def redefine() -> None:
            for reader in (each, *readers):
                reader.refresh(self.image)
            begun = f"ALTER CONTINUOUS QUERY {each.name} AS "
            if text != expanded(other, now):
                self._refused(begun + _by_names(other, each.sources))
            self.recorder.execute(
                begun + _by_names(other if text == expanded(other, now) else text, each.sources)
            )
            each.redefined(text)
            for reader in readers:
                self.recorder.refresh(reader.name)
                reader.redefined(reader.text)
            self.tally.counts["redefinitions"] += 1

        self._guarded(each, redefine)

    def _refused(self, statement: str) -> None:
        """The star stands for more columns than it did, which no delta can say."""
        try:
            self.recorder.execute(statement)
        except AnalysisError:
            self.tally.counts["redefinitions that do not fit"] += 1
        else:
            raise Broken(f"{statement}: its columns are not those that it had")

    def _finish(self, each: Watched) -> None:
        each.refresh(self.image)
        each.check_reading()

    def _guarded(self, each: Watched, act: Callable[[], None]) -> None:
        """Where it goes wrong the query is watched no more."""
        try:
            act()
        except Exception as problem:  # noqa: BLE001 - a fault to be shown
            for gone in (each, *self._readers(each)):
                self.watched.remove(gone)
            if isinstance(problem, CQError) and each.fails_in_spark(self.image):
                self.tally.counts["queries that fail in Spark"] += 1
            else:
                self._fault(str(each), problem)

    def _fault(self, what: str, problem: BaseException) -> None:
        trace = "" if isinstance(problem, Broken) else traceback.format_exc()
        shown = [f"seed {self.world.seed}: {what}", f"{type(problem).__name__}: {problem}", trace]
        self.tally.faults.append("\n".join(shown))
        path = self.recorder.directory.parent / f"fault{len(self.tally.faults)}.py"
        path.write_text(
            "\n".join([*(f"# {line}" for part in shown for line in part.splitlines()), *self.recorder.lines])
        )
        print(f"FAULT (see {path})\n" + "\n".join(shown), flush=True)


def _by_names(text: str, sources: Sources) -> str:
    return named(text, lambda number: sources[number].name)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
