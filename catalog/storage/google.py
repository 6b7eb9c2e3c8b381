"""Buckets of Google Cloud Storage."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cq_engine.catalog.storage.access import Access
from cq_engine.core.errors import AnalysisError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["GoogleAccess"]

_FILE = "GOOGLE_APPLICATION_CREDENTIALS"


@dataclass(frozen=True, kw_only=True)
class GoogleAccess(Access):
    """A file with the credentials of an account, or else Google's default credentials: those of `gcloud`, or of the instance."""

    ENVIRONMENT: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "credentials_file": (_FILE,),
        "anonymous": (),
        "endpoint_url": (),
    }
    TOGETHER: ClassVar[tuple[str, ...]] = ("credentials_file", "anonymous")

    credentials_file: str = ""
    anonymous: str = ""

    @classmethod
    def _check(cls, given: Mapping[str, str]) -> None:
        if given.get("anonymous", "false") not in ("true", "false"):
            raise AnalysisError(
                "storage.anonymous is neither true nor false",
                hint="write 'true' for a bucket that asks for no credentials",
            )

    def filesystem(self) -> pafs.FileSystem:
        """Google's library looks for the file's name in the environment alone."""
        import pyarrow.fs as pafs

        if self.credentials_file:
            os.environ[_FILE] = self.credentials_file
        scheme, server = self._server
        return pafs.GcsFileSystem(
            anonymous=self.anonymous == "true",
            endpoint_override=server or None,
            scheme=scheme or None,
            retry_time_limit=timedelta(seconds=max(1.0, self.request_seconds)),
        )

    def _delta_options(self) -> dict[str, str]:
        found = {"google_application_credentials": self.credentials_file}
        if self.anonymous == "true" or self.endpoint_url:
            found["google_service_account_key"] = json.dumps(self._account())
        return found

    def _account(self) -> dict[str, object]:
        """What Delta Lake's library takes for an account: only there it can be told of another server, or of none that is asked who one is."""
        named = ("private_key", "private_key_id", "client_email")
        known: dict[str, object] = dict.fromkeys(named, "")
        if self.credentials_file:
            known |= json.loads(Path(self.credentials_file).read_text(encoding="utf-8"))
        known["disable_oauth"] = self.anonymous == "true"
        if self.endpoint_url:
            known["gcs_base_url"] = self.endpoint_url
        return known
