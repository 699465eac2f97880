"""Where OpenReview answers and who asks: read from the environment, never from the command line."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pipeline.errors import SourceRefused

V2_URL = "https://api2.openreview.net"
V1_URL = "https://api.openreview.net"


@dataclass(frozen=True)
class Access:
    """Where OpenReview answers and who asks. `v1` is None where only a base URL of v2 is known."""

    v2: str = V2_URL
    v1: str | None = V1_URL
    username: str | None = None
    password: str | None = field(default=None, repr=False)


def access_from(environment: Mapping[str, str]) -> Access:
    """The access the environment names, with the variables of the official client.

    OPENREVIEW_USERNAME, OPENREVIEW_PASSWORD, OPENREVIEW_API_BASEURL_V2 and OPENREVIEW_API_BASEURL (v1);
    OPENREVIEW_BASEURL stands for both. With one base URL set, the public host of the other version is not used.

    Raises:
        SourceRefused: half a login, a base URL that is none, or a password over plain HTTP to another machine.
    """
    both = environment.get("OPENREVIEW_BASEURL")
    v2 = environment.get("OPENREVIEW_API_BASEURL_V2") or both
    v1 = environment.get("OPENREVIEW_API_BASEURL") or both
    if not v2 and not v1:
        v2, v1 = V2_URL, V1_URL
    username = environment.get("OPENREVIEW_USERNAME") or None
    password = environment.get("OPENREVIEW_PASSWORD") or None
    if bool(username) != bool(password):
        missing = "OPENREVIEW_PASSWORD" if username else "OPENREVIEW_USERNAME"
        raise SourceRefused(f"{missing} is not set but its other half is: set both, or neither")
    for url in filter(None, (v2, v1)):
        _check_base_url(url, secret=bool(password))
    # Groups and the login are asked of v2; an environment with v1 alone has only that host.
    return Access((v2 or v1 or "").rstrip("/"), v1.rstrip("/") if v1 else None, username, password)


def _check_base_url(url: str, *, secret: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
        raise SourceRefused(f"the OpenReview base URL must look like {V2_URL}, without a login in it")
    if secret and parts.scheme == "http" and not _loopback(parts.hostname):
        raise SourceRefused(f"{parts.hostname} would get the password over plain HTTP; use an https:// base URL")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
