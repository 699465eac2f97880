"""Every setting of the server: one table of flags, each also an environment variable `SERVE_…`.

The table is `Settings`; the command line, the documentation and the image all come from it. Secrets are in `SECRETS`:
they come from the environment only, never from argv.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

from manifests.places import state_home
from serve.errors import UsageRefused

Kind = Literal["text", "path", "integer", "seconds", "switch", "list", "networks", "choice"]
Network = IPv4Network | IPv6Network


class Setting(NamedTuple):
    """One flag, named as its field: `--name` and `SERVE_NAME`. `default` None: required or unset, as `help` says."""

    kind: Kind
    default: Any
    help: str
    minimum: float = 0
    maximum: float = float("inf")
    choices: tuple[str, ...] = ()
    required: bool = False
    name: str = ""

    @property
    def flag(self) -> str:
        """As written on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """As written in the environment."""
        return "SERVE_" + self.name.upper()


@dataclass(frozen=True)
class Settings:
    """What the server was told, checked: each field is a flag. Durations are seconds."""

    transport: Annotated[str, Setting("choice", "http", "how clients reach the server", choices=("http", "stdio"))]
    host: Annotated[
        str, Setting("text", "127.0.0.1", "address to listen on; 0.0.0.0 only behind your own access control")
    ]
    port: Annotated[int, Setting("integer", 8000, "port to listen on; 0 takes a free one and logs it", 0, 65_535)]
    manifest: Annotated[Path, Setting("path", None, "manifest of the index to serve (required)", required=True)]
    milvus_uri: Annotated[str, Setting("text", None, "WORK/milvus.db, http(s)://… or unix:… (required)", required=True)]
    milvus_wait: Annotated[
        float, Setting("seconds", 60, "how long the start waits for a Milvus that is not up yet", 0, 3_600)
    ]
    engines: Annotated[int, Setting("integer", 1, "embedded Milvus engines side by side; memory: docs/scale.md", 1, 64)]
    state: Annotated[
        Path, Setting("path", None, "SQLite file of sessions, limits and query vectors; default under XDG_STATE_HOME")
    ]
    ledger: Annotated[
        Path, Setting("path", None, "SQLite file of provider minutes, shared with builds; default under XDG_STATE_HOME")
    ]
    rate_limit: Annotated[
        int, Setting("integer", 60, "calls per client in any 60 seconds over HTTP; 0 turns it off", 0, 100_000)
    ]
    session_ttl: Annotated[float, Setting("seconds", 21_600, "a session idle for longer is expired", 1, 31_536_000)]
    session_capacity: Annotated[int, Setting("integer", 10_000, "open sessions at most", 1, 1_000_000)]
    session_rounds: Annotated[int, Setting("integer", 200, "searches in one session at most", 1, 100_000)]
    session_papers: Annotated[int, Setting("integer", 5_000, "papers returned in one session at most", 1, 1_000_000)]
    output_chars: Annotated[int, Setting("integer", 20_000, "characters of one answer at most", 2_000, 1_000_000)]
    call_deadline: Annotated[float, Setting("seconds", 30, "every call is answered or refused within this", 0.1, 600)]
    concurrency: Annotated[int, Setting("integer", 4, "searches that run at the same time", 1, 256)]
    queue: Annotated[
        int, Setting("integer", 128, "searches that may wait for a turn; more are told overloaded", 0, 10_000)
    ]
    query_deadline: Annotated[float, Setting("seconds", 3, "after this a query is answered by words alone", 0.05, 60)]
    query_cache: Annotated[int, Setting("integer", 10_000, "query vectors kept; 0 keeps none", 0, 10_000_000)]
    requests_per_minute: Annotated[
        int | None,
        Setting(
            "integer", None, "DashScope requests in any 60 seconds (or DASHSCOPE_REQUESTS_PER_MINUTE)", 1, 1_000_000
        ),
    ]
    tokens_per_minute: Annotated[
        int | None,
        Setting(
            "integer", None, "DashScope tokens in any 60 seconds (or DASHSCOPE_TOKENS_PER_MINUTE)", 1, 1_000_000_000
        ),
    ]
    dashscope_url: Annotated[
        str | None,
        Setting("text", None, "DashScope base URL (or DASHSCOPE_HTTP_BASE_URL); default is the service in China"),
    ]
    model_path: Annotated[Path | None, Setting("path", None, "local model folder in place of the packaged one")]
    strict_hybrid: Annotated[bool, Setting("switch", False, "an error in place of an answer by words alone")]
    allowed_hosts: Annotated[
        tuple[str, ...], Setting("list", (), "Host names accepted beside loopback, such as mcp.example.org")
    ]
    allowed_origins: Annotated[
        tuple[str, ...], Setting("list", (), "Origins accepted beside loopback, such as https://app.example.org")
    ]
    trusted_proxies: Annotated[
        tuple[Network, ...], Setting("networks", (), "networks of proxies whose X-Forwarded-For is believed")
    ]
    body_limit: Annotated[int, Setting("integer", 65_536, "bytes of one request body at most", 1_024, 16_777_216)]
    connections: Annotated[
        int, Setting("integer", 1_000, "client connections at the same time; more are answered 503", 1, 1_000_000)
    ]
    graceful_stop: Annotated[float, Setting("seconds", 10, "calls in flight may end within this after SIGTERM", 0, 600)]
    log_format: Annotated[str, Setting("choice", "text", "one line a call on stderr", choices=("text", "json"))]
    log_level: Annotated[
        str, Setting("choice", "info", "least severe lines shown", choices=("debug", "info", "warning", "error"))
    ]


SETTINGS: tuple[Setting, ...] = tuple(
    hint.__metadata__[0]._replace(name=name) for name, hint in get_type_hints(Settings, include_extras=True).items()
)

# A server on the machine of its builds is told the account once: these are read when the `SERVE_` ones are unset.
SHARED_WITH_BUILDS = {
    "requests_per_minute": "DASHSCOPE_REQUESTS_PER_MINUTE",
    "tokens_per_minute": "DASHSCOPE_TOKENS_PER_MINUTE",
    "dashscope_url": "DASHSCOPE_HTTP_BASE_URL",
}

SECRETS: dict[str, str] = {
    "DASHSCOPE_API_KEY": "key of the provider; needed when the manifest's model is DashScope's",
    "MILVUS_TOKEN": "token of a Milvus server or Zilliz Cloud",
    "SERVE_BEARER_TOKEN": "when set, /mcp and /metrics want `Authorization: Bearer TOKEN`",
    "SERVE_HASH_KEY": "key of the hashes in the state file; default is a key file beside it, mode 0600",
}


def read_settings(flags: Mapping[str, str], environment: Mapping[str, str]) -> Settings:
    """Flags before environment before defaults.

    Raises:
        UsageRefused: a value that is not what its setting takes, a required one absent, or an unknown `SERVE_…`.
        HomeUnknown: no place for the state was given, and there is no usual one.
    """
    known = {setting.variable for setting in SETTINGS} | set(SECRETS)
    if unknown := sorted(name for name in environment if name.startswith("SERVE_") and name not in known):
        raise UsageRefused(f"{', '.join(unknown)}: no such setting; `python -m serve --help` lists them")
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        given = flags.get(setting.name)
        source = setting.flag
        for variable in (setting.variable, SHARED_WITH_BUILDS.get(setting.name, "")):
            if given is None and environment.get(variable, "") != "":
                given, source = environment[variable], variable
        if given is None and setting.required:
            raise UsageRefused(f"{setting.flag} (or {setting.variable}) is missing: {setting.help}")
        values[setting.name] = setting.default if given is None else _value(setting, given, source)
    values["state"] = values["state"] or state_home(environment) / "serve.db"
    values["ledger"] = values["ledger"] or state_home(environment) / "ledger.db"
    return Settings(**values)


def _value(setting: Setting, given: str, source: str) -> Any:
    text = given.strip()
    readers: dict[Kind, Callable[[], Any]] = {
        "switch": lambda: _switch(text, source),
        "choice": lambda: _choice(setting, text, source),
        "integer": lambda: _number(setting, text, source),
        "seconds": lambda: _number(setting, text, source),
        "path": lambda: Path(text),
        "list": lambda: _names(setting, text, source),
        "networks": lambda: tuple(_network(part, source) for part in _listed(text)),
        "text": lambda: text,
    }
    return readers[setting.kind]()


def _choice(setting: Setting, text: str, source: str) -> str:
    if text not in setting.choices:
        raise UsageRefused(f"{source} is {text!r}; it takes {' or '.join(setting.choices)}")
    return text


def _switch(text: str, source: str) -> bool:
    spellings = {
        "true": True,
        "1": True,
        "yes": True,
        "on": True,
        "false": False,
        "0": False,
        "no": False,
        "off": False,
    }
    if text.lower() not in spellings:
        raise UsageRefused(f"{source} is {text!r}; it takes true or false")
    return spellings[text.lower()]


def _number(setting: Setting, text: str, source: str) -> int | float:
    try:
        number = int(text) if setting.kind == "integer" else float(text)
    except ValueError as error:
        raise UsageRefused(f"{source} is {text!r}; it takes a number") from error
    if not setting.minimum <= number <= setting.maximum:
        raise UsageRefused(f"{source} is {text}; it must lie between {setting.minimum:,} and {setting.maximum:,}")
    return number


def _names(setting: Setting, text: str, source: str) -> tuple[str, ...]:
    if "*" in text:
        raise UsageRefused(f"{source} is {text!r}; it takes no patterns but whole names: {setting.help}")
    return _listed(text)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _network(text: str, source: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as error:
        raise UsageRefused(f"{source} holds {text!r}; it takes addresses or networks such as 10.0.0.0/8") from error
