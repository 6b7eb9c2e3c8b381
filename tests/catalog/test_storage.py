"""Where files lie: one suite over a directory and over a bucket, and what only a bucket has."""

from __future__ import annotations

import base64
import json
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from cq_engine.catalog import tables
from cq_engine.catalog.model import DataFile
from cq_engine.catalog.storage.azure import AzureAccess
from cq_engine.catalog.storage.base import Store
from cq_engine.catalog.storage.google import GoogleAccess
from cq_engine.catalog.storage.local import LocalStore
from cq_engine.catalog.storage.location import open_store
from cq_engine.catalog.storage.s3 import S3Access
from cq_engine.catalog.store import Catalog
from cq_engine.core.clock import SystemClock
from cq_engine.core.disk import disk_error
from cq_engine.core.errors import AnalysisError, CatalogError, StorageError
from cq_engine.core.limits import Limits
from tests import azure_store, google_store
from tests.object_store import Faults, ObjectStoreServer

ROWS = pa.table({"k": pa.array([1, 2, 3], pa.int64()), "v": ["a", None, "c"]})
HASTY = Limits(store_tries=1, store_connect_seconds=0.5, store_request_seconds=2)


AZURE = "abfss://lake@account.dfs.core.windows.net/a"


@pytest.fixture(params=["directory", "s3", "google", "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path, bucket_url: str) -> Store:
    place = bucket_url.removeprefix("s3://lake/")
    if request.param == "directory":
        made = open_store(str(tmp_path / "warehouse"))
    elif request.param == "s3":
        made = open_store(bucket_url, request.getfixturevalue("objects").access)
    elif request.param == "google":
        made = open_store(google_store.url(place), request.getfixturevalue("google_access"))
    else:
        made = open_store(azure_store.url(place), request.getfixturevalue("azure_access"))
    made.make(["tables", "changes"])
    return made


def put(store: Store, path: str, content: bytes = b"content") -> None:
    with store.writing(path) as sink:
        sink.write(content)
    store.make_durable(path)


def names(store: Store, directory: str = "") -> list[str]:
    return [found.path for found in store.list(directory)]


class TestEveryStore:
    def test_a_file(self, store: Store) -> None:
        assert not store.has("tables/t/a.bin")
        put(store, "tables/t/a.bin", b"12345")
        found = store.stat("tables/t/a.bin")
        assert (found.path, found.size) == ("tables/t/a.bin", 5)
        assert abs(found.modified / 1000 - time.time()) < 60
        assert store.list("tables/t") == [found]
        assert store.has("tables/t/a.bin")
        assert store.uri("tables/t/a.bin") == f"{store.location}/tables/t/a.bin"

    def test_a_list_has_all_below_in_order(self, store: Store) -> None:
        paths = ["tables/t/a/2", "tables/t/a/10", "tables/t/a/b/c", "tables/t/z", "tables/tt/x"]
        for path in paths:
            put(store, path)
        assert names(store, "tables/t") == sorted(paths[:4])
        assert names(store, "tables") == sorted(paths)
        assert names(store, "nothing/here") == []

    def test_having(self, store: Store) -> None:
        put(store, "tables/t/a")
        asked = ["tables/u", "tables/t", "tables/t/a", "tables/t/b"]
        assert store.having(asked) == ["tables/t", "tables/t/a"]

    def test_files_that_others_have_written(self, store: Store) -> None:
        names = [f"tables/t/copy/part-{number:02}.parquet" for number in range(20)]
        written = [
            tables.write_parquet(ROWS.slice(number % 4), name, store, ["k"])
            for number, name in enumerate(names)
        ]
        for name in (
            "tables/t/copy/_SUCCESS",
            "tables/t/copy/.part.crc",
            "tables/t/copy/_temporary/x.parquet",
        ):
            put(store, name)
        assert [file.rows for file in written[:4]] == [3, 2, 1, 0]
        assert tables.data_files("tables/t/copy", store, ["k"]) == [file for file in written if file.rows]
        put(store, names[7], b"no Parquet")
        with pytest.raises(pa.ArrowInvalid):
            tables.data_files("tables/t/copy", store, ["k"])

    def test_several_are_asked_together(self, store: Store) -> None:
        meet = threading.Barrier(1 if store.is_local else 4, timeout=10)

        def work(number: int) -> int:
            meet.wait()
            if number > 6:
                raise OSError(str(number))
            return -number

        assert store.together(work, iter(range(4))) == [0, -1, -2, -3]
        with pytest.raises(OSError, match=r"^7$"):
            store.together(work, range(8))

    def test_what_is_not_there(self, store: Store) -> None:
        for ask in (store.stat, store.source):
            with pytest.raises(FileNotFoundError):
                pq.read_metadata(ask("tables/t/a"))
        store.delete("tables/t/a", parents=2)
        store.delete_directory("tables/t")

    def test_delete(self, store: Store) -> None:
        for path in ("tables/t/one/log/a", "tables/t/one/log/b", "tables/t/two/a"):
            put(store, path)
        store.delete("tables/t/one/log/a", parents=2)
        assert names(store) == ["tables/t/one/log/b", "tables/t/two/a"]
        store.delete("tables/t/one/log/b", parents=2)
        assert names(store) == ["tables/t/two/a"]
        assert not store.has("tables/t/one")
        store.delete_directory("tables/t/")
        assert names(store) == []
        assert not store.has("tables/t")

    def test_replacing_is_all_or_nothing(self, store: Store) -> None:
        for content in (b"first", b"another one"):
            with store.replacing("changes/t/a") as sink:
                sink.write(content)
            assert store.stat("changes/t/a").size == len(content)
        with pytest.raises(KeyError):
            self.fail_in_the_middle(store, "changes/t/b")
        assert names(store) == ["changes/t/a"]

    def fail_in_the_middle(self, store: Store, path: str) -> None:
        with store.replacing(path) as sink:
            sink.write(b"half")
            raise KeyError

    def test_parquet(self, store: Store) -> None:
        file = tables.write_parquet(ROWS, "tables/t/a/part-0.parquet", store, ["k", "v"], row_group=2)
        assert (file.rows, file.stats) == (3, {"k": (1, 3), "v": ("a", "c")})
        assert file == tables.data_file(file.path, store, ["k", "v"])
        assert store.stat(file.path).size == file.bytes
        assert tables.damage(store, file) == ""
        read = ds.dataset([store.path(file.path)], format="parquet", filesystem=store.filesystem)
        assert read.to_table().equals(ROWS)
        batches = list(tables.batches(store, file.path, 2))
        assert pa.Table.from_batches(batches).equals(ROWS)

    def test_damage(self, store: Store) -> None:
        file = tables.write_parquet(ROWS, "tables/t/a/part-0.parquet", store)
        put(store, file.path, b"x" * file.bytes)
        assert "is damaged" in tables.damage(store, file)
        put(store, file.path, b"x")
        assert f"has 1 bytes, the catalog says {file.bytes}" in tables.damage(store, file)
        assert tables.damage(store, DataFile("tables/t/b", 1, 1)) == "tables/t/b is not there"

    def test_it_goes_to_other_processes(self, store: Store) -> None:
        put(store, "tables/t/a")
        other: Store = pickle.loads(pickle.dumps(store))
        assert names(other) == ["tables/t/a"]
        assert other.location == store.location

    def test_many_threads(self, store: Store) -> None:
        def work(number: int) -> None:
            put(store, f"tables/t/{number}/a", b"x" * number)
            assert store.stat(f"tables/t/{number}/a").size == number
            if number % 2:
                store.delete(f"tables/t/{number}/a", parents=1)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(1, 41)))
        assert len(names(store)) == 20

    def test_a_large_file(self, store: Store) -> None:
        """Of several parts, where a store wants it so."""
        block = bytes(range(256)) * 4096
        with store.writing("tables/t/large") as sink:
            for _ in range(13):
                sink.write(block)
        assert store.stat("tables/t/large").size == 13 * len(block)


# ---------------------------------------------------------------- buckets


def test_requests_are_made_again(objects: ObjectStoreServer, bucket_url: str) -> None:
    store = open_store(bucket_url, objects.access)
    objects.fault(Faults(delay=0.001, fail=0.06, throttle=0.06, cut=0.06, seed=3))
    objects.counts()
    for number in range(30):
        put(store, f"t/{number:02d}/a", b"x" * number)
        assert store.stat(f"t/{number:02d}/a").size == number
        if number % 2:
            store.delete(f"t/{number:02d}/a", parents=1)
    assert names(store) == [f"t/{number:02d}/a" for number in range(0, 30, 2)]
    counts = objects.counts()
    assert counts["failed"] >= 3
    assert counts["throttled"] >= 3
    assert counts["cut"] >= 3


def test_a_store_that_is_gone_for_a_while(objects: ObjectStoreServer, bucket_url: str) -> None:
    """Every connection is cut, as when its server was killed, until it is there again."""
    store = open_store(bucket_url, objects.access)
    objects.fault(Faults(cut=1.0, seed=4))
    later = threading.Timer(1.5, objects.fault, [Faults()])
    later.start()
    put(store, "t/a", b"x")
    later.join()
    assert names(store) == ["t/a"]


@pytest.mark.parametrize(
    ("url", "options", "kind", "said"),
    [
        ("s3://lake", {}, CatalogError, "has no catalog"),
        ("s3://lake/a/../b", {}, StorageError, "does not name a bucket"),
        ("s3://key:secret@lake/a", {}, StorageError, "does not name a bucket"),
        ("s3://", {}, StorageError, "does not name a bucket"),
        ("hdfs://lake/a", {}, StorageError, "no warehouse on hdfs://"),
        ("gs://", {}, StorageError, "does not name a bucket"),
        ("gs://lake/a", {}, CatalogError, "has no catalog"),
        ("gs://lake/a", {"access_key_id": "x"}, AnalysisError, "no option storage.access_key_id"),
        ("gs://lake/a", {"anonymous": "yes"}, AnalysisError, "neither true nor false"),
        ("abfss://lake/a", {}, StorageError, "does not name a bucket"),
        ("abfss://key:secret@account.dfs.core.windows.net/a", {}, StorageError, "does not name a bucket"),
        (AZURE, {}, CatalogError, "has no catalog"),
        (AZURE, {"account_key": "x", "sas_token": "y"}, AnalysisError, "one of them is meant"),
        (AZURE, {"client_secret": "x"}, AnalysisError, "not given whole"),
        ("s3://lake/a", {"acess_key_id": "x"}, AnalysisError, "no option storage.acess_key_id"),
        ("s3://lake/a", {"access_key_id": "x"}, AnalysisError, "one is not given"),
        ("s3://lake/a", {"endpoint_url": "localhost:9"}, AnalysisError, "no URL of a server"),
        ("s3://lake/a", {"endpoint_url": "http://me:secret@h"}, AnalysisError, "no URL of a server"),
    ],
)
def test_what_is_refused(
    url: str, options: dict[str, str], kind: type[Exception], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(kind, match=said) as caught:
        Catalog.open(url, clock=SystemClock(), storage=options)
    assert caught.value.hint  # type: ignore[attr-defined]
    assert "secret@" not in caught.value.render()  # type: ignore[attr-defined]


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}", "FILE://{}", "file://localhost{}"])
def test_names_of_directories(form: str, tmp_path: Path) -> None:
    place = tmp_path / "a %20b"
    store = open_store(form.format(place))
    assert isinstance(store, LocalStore)
    assert store.path("x") == str(place / "x")


@pytest.mark.parametrize(
    "url", ["file://warehouse", "file://host/warehouse", "file:", "file://", "file:data"]
)
def test_files_of_other_machines_are_refused(url: str) -> None:
    with pytest.raises(StorageError, match="does not name a directory of this machine"):
        open_store(url)


@pytest.mark.parametrize("kind", ["s3", "google", "azure"])
def test_a_store_that_does_not_serve(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """No way to it, no such bucket, another key: what to do is said in the options that this store has."""
    fixture, url, other = {
        "s3": ("objects", "s3://lake/x", "s3://nobody/x"),
        "google": ("google_access", google_store.url("x"), "gs://nobody/x"),
        "azure": ("azure_access", azure_store.url("x"), azure_store.url("x").replace("lake@", "nobody@")),
    }[kind]
    access = request.getfixturevalue(fixture)
    access = access.access if isinstance(access, ObjectStoreServer) else access

    def hint(url: str, **changed: str) -> str:
        with pytest.raises(StorageError, match=f"cannot make the warehouse {url}") as caught:
            Catalog.open(
                url,
                url=f"sqlite:///{tmp_path}/catalog.db",
                clock=SystemClock(),
                storage={**access, **changed},
                limits=HASTY,
            )
        return caught.value.hint

    way = "storage.endpoint_url, storage.region" if kind == "s3" else "storage.endpoint_url"
    assert (
        hint(url, endpoint_url="http://127.0.0.1:9")
        == f"see that {way} and the network lead to the store, then repeat it"
    )
    assert hint(other) == "create the bucket first"
    if kind == "azure":
        assert "storage.account_key" in hint(url, account_key=base64.b64encode(b"x" * 64).decode())


def test_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options, then the environment; a secret belongs to the key beside which it stands; nobody sees one."""
    environment = {
        "AWS_ACCESS_KEY_ID": "theirs",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_SESSION_TOKEN": "hush hush",
        "AWS_DEFAULT_REGION": "eu-north-1",
        "AWS_ENDPOINT_URL": "https://store",
    }
    found = S3Access.of({}, Limits(), environment)
    assert (found.access_key_id, found.secret_access_key, found.session_token) == (
        "theirs",
        "hush",
        "hush hush",
    )
    assert (found.region, found.endpoint_url) == ("eu-north-1", "https://store")
    own = S3Access.of({"access_key_id": "mine", "secret_access_key": "s3cret"}, Limits(), environment)
    assert (own.access_key_id, own.secret_access_key, own.session_token) == ("mine", "s3cret", "")
    assert not any(word in repr((found, own)) for word in ("hush", "s3cret"))
    role = S3Access.of({}, Limits(), {})
    assert not any("key" in name for name in role.delta_options()), "the library asks for the role's"


def test_credentials_of_google() -> None:
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": "/etc/key.json"}
    found = GoogleAccess.of({}, Limits(), environment)
    assert found.credentials_file == "/etc/key.json"
    assert found.delta_options()["google_application_credentials"] == "/etc/key.json"
    own = GoogleAccess.of({"anonymous": "true"}, Limits(), environment)
    assert own.credentials_file == ""
    assert json.loads(own.delta_options()["google_service_account_key"])["disable_oauth"]


def test_credentials_of_azure() -> None:
    """A key, a signature or a principal; of a principal without a secret only a client is said, an identity of the machine."""
    principal = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "c"}

    def given(options: dict[str, str], environment: dict[str, str]) -> set[str]:
        found = AzureAccess.of(options, Limits(), environment)
        assert not any(word in repr(found) for word in ("hush", "s3cret"))
        return {name for name in found.delta_options() if name.startswith("azure_")}

    assert given({}, {"AZURE_STORAGE_ACCOUNT_KEY": "hush"}) == {"azure_storage_account_key"}
    assert given({"sas_token": "s3cret"}, {"AZURE_STORAGE_ACCOUNT_KEY": "hush"}) == {"azure_storage_sas_key"}
    whole = {"azure_storage_tenant_id", "azure_storage_client_id", "azure_storage_client_secret"}
    assert given({}, {**principal, "AZURE_CLIENT_SECRET": "hush"}) == whole
    assert given({"account_key": "s3cret"}, {**principal, "AZURE_CLIENT_SECRET": "hush"}) == {
        "azure_storage_account_key"
    }
    assert given({}, principal) == set(), "of a workload, which the libraries find"
    assert given({"client_id": "c"}, {}) == {"azure_storage_client_id"}
    assert given({}, {}) == set()


def test_no_secret_is_stored(objects: ObjectStoreServer, bucket_url: str, tmp_path: Path) -> None:
    file = tmp_path / "catalog.db"
    options: dict[str, Any] = {"clock": SystemClock(), "storage": objects.access}
    with pytest.raises(CatalogError, match="no catalog here"):
        Catalog.open(bucket_url, url=f"sqlite:///{file}", read_only=True, **options)
    catalog = Catalog.open(bucket_url, url=f"sqlite:///{file}", **options)
    catalog.close()
    assert all(b"secret of the tests" not in path.read_bytes() for path in tmp_path.iterdir())
    with pytest.raises(CatalogError, match=f"is the catalog of the warehouse {bucket_url}, not of"):
        Catalog.open(f"{bucket_url}2", url=f"sqlite:///{file}", **options)
    Catalog.open(bucket_url.replace("s3:", "s3a:") + "/", url=f"sqlite:///{file}", **options).close()


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("AWS Error ACCESS_DENIED during HeadObject operation", "let these credentials"),
        ("AWS Error NO_SUCH_BUCKET during PutObject operation", "create the bucket"),
        ("AWS Error INVALID_ACCESS_KEY_ID during ListObjectsV2 operation", "storage.access_key_id"),
        ("Generic S3 error: 503 SlowDown", "throttles"),
        ("AWS Error NETWORK_CONNECTION during HeadBucket operation", "storage.region"),
        ("google::cloud::Status(PERMISSION_DENIED: no access error_info={})", "let these credentials"),
        ("google::cloud::Status(UNAUTHENTICATED: Anonymous caller)", "storage.credentials_file"),
        ("google::cloud::Status(UNAVAILABLE: Could not connect to server)", "storage.endpoint_url and"),
        (
            "Azure Error: [AuthorizationPermissionMismatch] 403 This request is not authorized",
            "let these credentials",
        ),
        (
            "Azure Error: [AuthorizationFailure] 403 Server failed to authenticate the request",
            "storage.account_key",
        ),
        ("Azure Error: [ServerBusy] 503 The server is busy", "throttles"),
        ("Generic MicrosoftAzure error: 404 The specified container does not exist", "create the bucket"),
        (
            "When reading information for key 'wh/t/part-00503-ab.parquet' in bucket 'lake': AWS Error ACCESS_DENIED",
            "let these",
        ),
        (
            "Azure Error: [AuthorizationPermissionMismatch] 403 Not authorized. RequestId:1a5036f2-503-401",
            "let these",
        ),
        (
            "When reading key 'data/401/signature.parquet' in bucket 'permissions': AWS Error NETWORK_CONNECTION",
            "storage.region",
        ),
        (
            "Generic S3 error: Error performing GET https://h/lake/t/503.parquet in 2s - error sending request",
            "storage.region",
        ),
        ("AWS Error REQUEST_TIME_TOO_SKEWED during GetObject operation", "clock"),
        (
            "google::cloud::Status(INVALID_ARGUMENT: Could not create a OAuth2 access token)",
            "storage.credentials_file",
        ),
        ("google::cloud::Status(RESOURCE_EXHAUSTED: rate limit)", "throttles"),
        ("google::cloud::Status(NOT_FOUND: The specified bucket does not exist.)", "create the bucket"),
        (
            "The operation lacked the necessary privileges to complete for path a/401: Error",
            "let these credentials",
        ),
        (
            "When copying key 'x' in bucket 'lake': AWS Error NO_SUCH_KEY: The specified key does not exist.",
            "",
        ),
        ("Azure Error: [BlobNotFound] 404 The specified blob does not exist.", ""),
        ("google::cloud::Status(NOT_FOUND: No such object: lake/t/x)", ""),
        ("no such column: blob", ""),
        ("azure is a colour of something else", ""),
    ],
)
def test_hints(said: str, hint: str) -> None:
    found = disk_error("read x", OSError(said)).hint
    assert hint in found
    assert bool(hint) == bool(found)
