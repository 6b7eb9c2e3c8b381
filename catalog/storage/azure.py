"""Containers of Azure Blob Storage and Data Lake Storage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from cq_engine.catalog.storage.access import Access
from cq_engine.core.errors import AnalysisError

if TYPE_CHECKING:
    import pyarrow.fs as pafs

__all__ = ["AzureAccess"]

_PRINCIPAL = ("tenant_id", "client_id", "client_secret")


@dataclass(frozen=True, kw_only=True)
class AzureAccess(Access):
    """The account's key, a shared access signature, or a service principal; or else the identity of the machine."""

    ENVIRONMENT: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_KEY"),
        "sas_token": ("AZURE_STORAGE_SAS_TOKEN",),
        "tenant_id": ("AZURE_TENANT_ID",),
        "client_id": ("AZURE_CLIENT_ID",),
        "client_secret": ("AZURE_CLIENT_SECRET",),
        "endpoint_url": ("AZURE_STORAGE_ENDPOINT",),
    }
    TOGETHER: ClassVar[tuple[str, ...]] = ("account_key", "sas_token", *_PRINCIPAL)

    account_key: str = field(default="", repr=False)
    sas_token: str = field(default="", repr=False)
    tenant_id: str = ""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)

    @classmethod
    def _check(cls, given: Mapping[str, str]) -> None:
        if given.get("account_key") and given.get("sas_token"):
            raise AnalysisError(
                "the storage account's key and a shared access signature are given, and one of them is meant",
                hint="give storage.account_key or storage.sas_token, or one of their variables in the environment",
            )
        if given.get("client_secret") and not all(given.get(name) for name in _PRINCIPAL):
            raise AnalysisError(
                "the service principal is not given whole",
                hint=f"it has {', '.join(f'storage.{name}' for name in _PRINCIPAL)}",
            )

    def filesystem(self) -> pafs.FileSystem:
        import pyarrow.fs as pafs

        given = self._credentials()
        scheme, server = self._server
        if server:
            for service in ("blob", "dfs"):
                given[f"{service}_storage_authority"] = server
                given[f"{service}_storage_scheme"] = scheme
        return pafs.AzureFileSystem(self.account, **given)

    def _delta_options(self) -> dict[str, str]:
        names = {"sas_token": "sas_key"}
        given = {
            f"azure_storage_{names.get(name, name)}": value for name, value in self._credentials().items()
        }
        endpoint = self.endpoint_url.rstrip("/")
        return {
            **given,
            "azure_storage_account_name": self.account,
            "azure_storage_endpoint": f"{endpoint}/{self.account}" if endpoint else "",
        }

    def _credentials(self) -> dict[str, str]:
        """Of what is given what both libraries are to use. Without a secret, a tenant and a client are those of a workload's identity, which
        the libraries find themselves; a client alone is an identity that the machine has."""
        names: tuple[str, ...] = ("account_key", "sas_token")
        if not (self.account_key or self.sas_token):
            names = _PRINCIPAL if self.client_secret else () if self.tenant_id else ("client_id",)
        return {name: value for name in names if (value := getattr(self, name))}
