"""The numeric bounds of an engine: above which size another way is taken, how much is kept, how long is waited.

One frozen value for all of an engine; `Catalog.limits` holds it, and every part above reads it there. Tests choose a
path by other values: `connect(..., limits=Limits(small_rows=-1))`; who gives none gets those that fit the memory. Facts of formats (widths of SQL types, footers of
files), of plans (which have no engine) and words for people are no bounds and stand where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DEFAULT_LIMITS", "GROWING", "HELD", "Limits"]

_MIB = 2**20
_WHOLE_MEMORY = 7 * 2**30
_WHOLE_HEAP = 2_800 * _MIB
_MOST_SHARE = 3.0


@dataclass(frozen=True)
class Limits:
    """Every bound with its unit and its reason. A row bound of -1 means: never, not even for no rows."""

    # ------------------------------------------------------------ catalog

    row_ids: int = 10_000
    """Hidden row identities reserved at a time: one write to the catalog for so many rows."""
    inline_cache_bytes: int = 256 * _MIB
    """Decoded change rows that are kept in memory, with what Arrow needs beside the values."""
    kept_change_bytes: int = 32 * _MIB
    """Those of one change set with files are kept up to so many bytes, too: the next refreshes and commits read them again, until
    they are merged into the snapshot."""
    lease_seconds: float = 15.0
    """Without a heartbeat for so long, a process that cannot be asked is taken for dead."""
    heartbeat_seconds: float = 3.0
    """Between two heartbeats; several of them fit into `lease_seconds`."""
    follow_seconds: float = 0.05
    """How often a process looks whether others have written: a statement does in any case. In one that only reads, who
    follows a query looks."""
    lock_seconds: float = 60.0
    """How long a write waits for that of another process."""
    statement_tries: int = 10
    """How often a statement by itself is run that meets the commits of other transactions."""
    commit_tries: int = 2
    """How often a large commit, or a large `apply_changes`, is prepared beside others' commits, before it keeps them from
    committing."""
    flush_rows: int = 1_000_000
    """Inline change rows per file when they are flushed, so that a long run does not have to fit into memory."""
    checkpoint_commits: int = 50
    """Published Delta Lake versions between two checkpoints: readers list no more than so many log files."""
    publish_tries: int = 3
    """How often a publication is tried that another writer of the same Delta Lake table comes before."""
    published_files: int = 64
    """Small files of a published log that become one: a reader opens few, and a file is written again seldom."""
    published_file_bytes: int = 16 * 1024**2
    """Files of a published log that are as large stay as they are."""
    publish_batch_rows: int = 65_536
    """Rows in memory at a time while a file is copied for publication."""

    # ------------------------------------------------------------ reading tables

    small_rows: int = 50_000
    """A table with at most so many rows has an image in memory."""
    small_bytes: int = 64 * _MIB
    """All images in memory together."""
    image_frames: int = 64
    """DataFrames of images in memory that are kept for the next statement."""
    look_up_files: int = 64
    """Files, after pruning, that the driver reads itself."""
    look_up_rows: int = 1_000_000
    """Rows that the driver takes out of them."""
    look_up_candidates: int = 5_000_000
    """Rows with a wanted value in each column of a key of several, of which it picks those with a wanted key."""
    in_list: int = 1_000
    """Literals in one pushed-down IN; more become a broadcast semi-join."""
    relevant_rows: int = 1_000
    """Of more change rows than this, those are picked that concern what is looked up."""
    change_rows: int = 1_000_000
    """Change rows that the driver is willing to apply to build one image in memory."""
    joined_sets: int = 8
    """Change rows of a table's uncompacted log that lie in so many change sets or more are kept put together: each commit reads them."""
    joined_rows: int = 10_000
    """Likewise from so many rows on, in however few change sets; pieces with so many are searched in order."""
    joined_bytes: int = 128 * _MIB
    """Up to so many bytes, of all tables; those read last stay."""
    change_files: int = 64
    """Change files that the driver reads itself."""
    change_bytes: int = 128 * _MIB
    """How large those files may be together."""
    row_group_files: int = 1_024
    """Files of which the statistics of row groups are kept in memory; those used last stay."""
    column_copy_share: int = 4
    """At most one part in so many of the free disk space becomes copies of columns."""
    column_copy_common: int = 1_000
    """A column gets a sorted copy where a value has, on average, at most so many rows."""
    column_copy_search: int = 1
    """Values are searched for in order where there are at most one in so many of the rows: 200 000 of them in 500 000 rows
    take a fifth of what it takes to look whether each row is wanted."""
    column_copy_places: int = 20_000_000
    """Rows that have wanted values of one column, of which those that have them of all others are picked."""

    # ------------------------------------------------------------ refreshes

    log_rows: int = 100_000
    """Of what executors have computed, the driver writes up to so many rows of a delta or a state: they make no files, and
    what later statements read is looked up by their keys."""
    recompute_bytes: int = 128 * _MIB
    """Of larger tables executors keep and compare the results of a recomputation; the driver takes no more than `log_rows`."""
    refresh_changes: int = 1_000_000
    """Up to so many change rows a refresh leaves through Arrow, if its rows are at most `refresh_rows`. It matters where one commit
    has more: intervals of several are cut."""
    slice_changes: int = 500_000
    """Of a transactional query, an interval with more change rows is refreshed in slices of whole commits, each with about so
    many at most: the rows that one of them makes stay within the other bounds, and the time grows with the changes."""
    least_slice_changes: int = 50_000
    """A slice with more change rows than this is cut again where an operator gives more than `arrow_rows`."""
    sliced_changes: int = 4_000_000
    """An interval with more change rows than this is not cut: executors take it as a whole."""
    refresh_inline_bytes: int = 64 * _MIB
    """Change rows of one table that a refresh on the driver, or the start of a query, stores in the catalog, in one value of its
    database; more go into files."""
    refresh_rows: int = 2_000_000
    """Rows of one statement of a refresh that the driver takes; more are written by executors."""
    arrow_rows: int = 2_000_000
    """Up to so many source rows the driver evaluates a statement of a refresh itself, in Arrow, where that gives what Spark
    gives; so many rows an operator may give. A tenth of a second to one, where Spark needs one to ten."""
    error_rows: int = 1_000
    """Rows of a delta that are read to say which of them have one key."""
    known_gone_rows: int = 20_000
    """Of up to so many rows that leave a result without a key, the values say which of its files are read."""
    driver_changes: int = 4_000_000
    """More change rows than this of one table are netted by Spark, not by the driver: as many as `sliced_changes`, which are in
    the uncompacted log when the last slice is refreshed."""
    driver_change_bytes: int = 512 * _MIB
    """Likewise, whatever their number."""
    shipped_changes: int = 1_000_000
    """Where executors refresh, more change rows than this of one table are netted by them; fewer come from the driver, who knows
    their keys."""
    driver_rows: int = 1_000_000
    """More rows than this of one table are read by Spark."""
    driver_bytes: int = 128 * _MIB
    """Likewise, whatever their number."""
    state_changes: int = 1_000_000
    """More change rows than this of a state are merged by Spark."""
    key_values: int = 1_000_000
    """More distinct keys than this are not worth a look-up by key; the table is scanned."""
    known_values: int = 1_000_000
    """More distinct keys than this are not even counted: of those that are left out of a look-up, few may remain."""
    key_combinations: int = 100_000
    """Keys of several columns are tried one by one up to this number."""
    counted_changes: int = 0
    """Up to so many change rows Spark counts the keys that are left, however few rows the table has."""
    recompute_share: float = 1.0
    """A refresh recomputes where the interval has more change rows than this share of the rows of all tables."""
    recompute_rows: int = 100_000
    """Of fewer change rows, a delta is always made from them."""
    plans: int = 256
    """Delta plans that an engine keeps; those used last stay."""
    own_plan_uses: int = 20
    """As often an interval is served by a more general plan that is prepared, before it gets a plan of its own."""
    plan_misses: int = 3
    """After so many intervals that a plan could not serve, it serves only those that it was made for; after so many in a row that
    Arrow could not evaluate for the size of a value, Spark runs the statement."""
    input_least_bytes: int = 1 * _MIB
    """Room of a plan input at least. The room is a hole in a file, but 32 MiB of it cost a small refresh a tenth more."""
    input_most_bytes: int = 128 * _MIB
    """Larger contents are no plan input: there the fixed cost of a query counts for little."""
    input_spare: int = 8
    """A plan input has room for so many times what it gets first, up to `input_most_bytes`."""

    mesh_prefetch: int = 3
    """Parts of the log whose rows are gathered in the scan of a mesh join while an earlier part is refreshed; the window is shared
    by one more."""
    compiled_rows: int = 10_000
    """Over more source rows Spark compiles the statements of a refresh on the driver."""
    prepare_seconds: float = 0.3
    """From CREATE, or a start, until the plans of a query are prepared: who closes the engine before that need not wait."""
    prepare_many_seconds: float = 5.0
    """Until those for many rows are, too."""
    prepare_queries: int = 16
    """Queries of a warehouse that is opened whose plans are prepared: those that were refreshed last."""
    retry_seconds: float = 1.0
    """Pause after a background refresh that failed because of the machine; it doubles with every failure in a row."""
    retry_most_seconds: float = 60.0
    """The longest such pause: a query is that late at most when the machine is well again, and a try costs a refresh."""

    # ------------------------------------------------------------ writing

    inline_bytes: int = 1_000_000
    """Change rows of one table in a commit up to this size are stored in the catalog; more go into files."""
    pending_rows: int = 100_000
    """Rows of one statement's effect that the driver takes; more are staged by executors."""
    apply_rows: int = 5_000_000
    """Changes of one table that the driver puts in order, commit by commit, in `apply_changes`; executors do so with more. So many
    transactions it takes at most."""
    staged_file_rows: int = 1_000_000
    """Rows per file that a statement writes."""
    staged_keys: int = 20_000_000
    """Staged rows whose keys the driver compares; of more, Spark does. Files in key order are read in parts, the keys of others
    are in memory at once, in 16 bytes each and as many for each column."""
    file_least_bytes: int = 8 * _MIB
    """Executors write a file for each core where each gets so many bytes: less is not worth a task and a file."""
    file_most_bytes: int = 256 * _MIB
    """And of more bytes than this at least two, however few rows they are: a task sorts what it writes."""
    shuffle_bytes: int = 16 * _MIB
    """A shuffle over tables has a partition for so many bytes of their files, which are a few times as many in memory. Spark
    puts together those that turn out small."""
    most_tasks: int = 20_000
    """Tasks, and so files, of one piece of work: the driver keeps some kilobytes for each task, the catalog for each file."""
    local_bytes: int = 32 * _MIB
    """Rows of the driver that travel in one task: a message of Spark's has 128 MiB at most (`spark.rpc.message.maxSize`)."""
    one_part_bytes: int = 4 * _MIB
    """Of a refresh, rows of the driver that stay in one partition: what joins them needs no shuffle. More are for several cores."""
    row_group_rows: int = 10_000
    """Rows of a Parquet row group: files are sorted, and a look-up by key decodes only the groups that may hold it."""
    start_rows: int = 100_000
    """Up to so many rows of a new query's result or state go through the driver; executors write more."""

    # ------------------------------------------------------------ maintenance

    compact_rows: int = 20_000
    """Change rows since the snapshot below which nothing is merged."""
    compact_long_rows: int = 80_000
    """Change rows beyond which they are merged whatever that costs: look-ups read all of them."""
    compact_share: int = 5
    """Between the two, at most so many rows are rewritten for each change row."""
    change_file_weight: int = 1_000
    """A file of change rows that is not in memory costs a look-up as much as so many rows."""
    free_change_files: int = 8
    """So many of them cost nothing."""
    snapshot_file_rows: int = 500_000
    """Rows per file of a snapshot: what one changed row causes to be written again."""
    merge_changes: int = 2_000_000
    """Change rows that the driver plans a merge with; more are merged by rewriting the whole table with Spark."""
    merge_driver_rows: int = 20_000_000
    """Rows that the driver rewrites in a merge, a slice after the other: about a minute. More are rewritten by executors."""
    merge_files: int = 1_000
    """Files of change rows that it reads for that."""
    merge_rows: int = 1_000_000
    """Rows of a slice that a merge rewrites at a time: what bounds its memory."""
    merge_quiet_seconds: float = 0.1
    """For so long nobody must have waited for a refresh before a merge begins in the background: refreshes come right after the
    commits that make merges due, and the two would share the cores."""
    merge_wait_seconds: float = 5.0
    """How long the merges of one round wait for that at most, together."""
    vacuum_seconds: float = 3600.0
    """Between two vacuums in the background."""
    first_vacuum_seconds: float = 600.0
    """From the start to the first of them, and how long maintenance waits for work at most."""
    maintenance_commits: int = 64
    """Commits after which a process that only commits gets the thread of maintenance."""
    publish_seconds: float = 5.0
    """Between two publications that follow refreshes."""
    grace_seconds: float = 600.0
    """For so long the files of forgotten versions stay: a reader may have begun to read them."""

    # ------------------------------------------------------------ delivery, groups and draining

    log_block_rows: int = 100_000
    """Change rows of a delta log that are taken from Spark at a time."""
    batch_deltas: int = 10_000
    """Deltas of a callback's batch at most: what is delivered again after a crash."""
    queue_rows: int = 10_000
    """Change rows that a consumer of a queue reads of a log at a time, so far as it ends with a commit, and messages that
    DEQUEUE gives at most."""
    queue_given: int = 20_000
    """Messages that a group of consumers has been given and has not finished; beyond, none that it has not seen are given."""
    queue_written: int = 100
    """Messages that `cq dequeue` writes before it acknowledges them."""
    queue_windows: int = 16
    """Parts of logs that an engine keeps for its consumers of queues."""
    queue_look_seconds: float = 1.0
    """A consumer that waits is told of refreshes; after so many seconds it looks for what other processes have given back."""
    callback_seconds: float = 5.0
    """For so long the end of an engine waits for `async` callbacks before it cancels them; they come again."""
    table_inline_bytes: int = 1 * _MIB
    """Rows for a destination table up to this size are stored in the catalog; larger ones in files."""
    deliveries: int = 64
    """Destinations that are served at the same time in the background, each by a thread."""
    guilty_trials: int = 100
    """Refreshes that are tried to find the members with which the refresh of a group fails."""
    settle_rows: int = 50_000
    """Rows of a shared log after which the cursors of members without deltas are moved, all at once."""
    settle_cursors: int = 500
    """Cursors that one transaction moves; commits come in between."""
    refresh_rounds: int = 5
    """How often a refresh starts over because others have taken the queries that it reads to different versions."""
    captures: int = 4
    """Captures whose ticks run at the same time: most of the time they wait for their sources."""
    load_rows: int = 500_000
    """From so many rows on, by the source's own estimate, executors read a source that can show them all one state (PostgreSQL):
    below, a connection of the driver is as fast, as it is where Spark has no core to spare."""
    load_connections: int = 8
    """Connections that they have to it at most: as many ranges of keys. Below 2, the driver reads."""
    sweep_updates: int = 1_000
    """Transactions of sources that one statement evaluates, or that one nested sweep absorbs before it is forced to end."""
    sweep_keys: int = 10_000
    """Keys that one question to a source has at most."""
    sweep_rows: int = 1_000_000
    """Changes of a log that one tick takes at most (of more, the join is computed anew), and rows that sweeps gather in the driver
    before they end behind fewer transactions; those of one transaction are never cut."""
    advice_seconds: float = 3.0
    """Between two looks at what a source counts: PostgreSQL's sessions tell what they did about once a second."""
    store_tries: int = 8
    """How often a request to an object store is made before its failure counts; each time later than before."""
    store_connect_seconds: float = 5.0
    """For so long a connection to an object store may take to be made."""
    store_request_seconds: float = 60.0
    """For so long an object store may be silent in the middle of a request."""
    store_threads: int = 16
    """Requests to an object store that delete files, read footers or look whether files to be published are whole, at the same time."""
    stray_hours: int = 1
    """For so long a file stays in an object store that a task of Spark's wrote without telling of it."""
    store_batch_rows: int = 65_536
    """Rows that a task of Spark's decodes at a time from a file of an object store."""
    scan_least_bytes: int = 4 * _MIB
    """Of such files a task reads at least so many bytes, if there are as many: less is not worth a task."""
    scan_most_bytes: int = 128 * _MIB
    """And at most about so many, in whole row groups, so that the tasks grow with what there is to read."""
    drain_refreshes: int = 4
    """Queries that DRAIN refreshes at the same time; they share the session, and Spark runs the jobs of several threads."""

    @classmethod
    def for_memory(cls, memory: int, heap: int | None = None) -> Limits:
        """The bounds of a driver with so many bytes of memory, Spark's own part included: with 7 GiB (what is called 8 GB)
        the defaults; with less, those of what it holds at once shrink with it, to an eighth at least. What is beyond them
        is left to executors, who spill to disk, or done in more pieces. With more, those of a refresh grow with it, to three times
        as much: the driver takes a tenth of the time that Spark takes on its cores. They grow with Java's `heap`, too, of which
        40 % of the memory are the default: what the driver cannot evaluate goes through it."""
        share = max(1 / 8, min(_MOST_SHARE, memory / _WHOLE_MEMORY))
        if heap is not None and share > 1:
            share = max(1.0, min(share, heap / _WHOLE_HEAP))
        return cls(**{name: int(getattr(cls, name) * share) for name in (HELD if share < 1 else GROWING)})

    def __post_init__(self) -> None:
        if self.batch_deltas < 1:
            raise ValueError("a batch holds at least one delta")


HELD = (
    "inline_cache_bytes", "kept_change_bytes", "small_bytes", "look_up_rows", "look_up_candidates", "change_rows",
    "joined_bytes", "change_bytes", "column_copy_places", "refresh_changes", "slice_changes", "sliced_changes", "refresh_rows",
    "arrow_rows", "driver_changes", "shipped_changes", "driver_change_bytes", "driver_rows", "driver_bytes", "state_changes", "recompute_bytes",
    "input_most_bytes", "staged_keys", "merge_changes", "merge_rows", "snapshot_file_rows", "staged_file_rows", "flush_rows",
    "sweep_rows",
)  # fmt: skip
"""The bounds of what the driver holds in memory at once, apart from what is small with any of them. Files are smaller with the slices
in which they are merged. `apply_rows` is none of them: it also says how large a transaction of some kinds may be, and that shall not
depend on the machine."""
GROWING = (
    "look_up_rows", "look_up_candidates", "refresh_changes", "refresh_rows", "arrow_rows", "driver_rows", "driver_bytes",
    "sliced_changes", "driver_changes", "driver_change_bytes", "change_bytes", "joined_bytes", "state_changes", "key_values", "known_values",
    "merge_changes",
)  # fmt: skip
"""Of a refresh, the change rows and the rows that meet them, which the driver takes, and their bytes; what is not merged yet and
each commit, refresh and merge searches. A slice, other caches and files stay as they are."""
DEFAULT_LIMITS = Limits()
"""What an engine gets that is told nothing else."""
