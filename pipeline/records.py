"""The record table of DESIGN.md as code: one source line -> one paper, or every reason why not.

Nothing is coerced and no text is changed: a value of another type, over its byte limit or outside its rule makes a
bad record. Control characters other than NUL stay in texts that are shown (abstracts have line breaks); identifiers,
areas, paper types and URLs hold none, because they are compared, listed and filtered as one line.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from manifests.collection import FIELD, KEY, SEARCH_TEXT, UNSPECIFIED_AREA, Field
from manifests.texts import embed_text, search_text, search_text_bytes_max, text_sha256
from manifests.visible import visible

TEXT_KEY = "text_sha256"
# What a record without a paper type is stored under; like an area it can be asked for.
UNSPECIFIED_TYPE = "Unspecified"

UNKNOWN_KEYS_MAX = 100
UNKNOWN_KEY_CHARS_MAX = 100
OTHER_UNKNOWN_KEYS = "(other keys)"

# Raise it whenever a reader takes, refuses or stores another value than before, `visible` included: a corpus that was
# read by other rules is then read again.
RULES_VERSION = 1

Paper = dict[str, Any]


LINE = "line"


class Fault(NamedTuple):
    """One reason against a record; `field` is the record's key, or `LINE` where the line itself cannot be read."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


class BadRecord(NamedTuple):
    """A record that breaks the table; `paper_id` is None where none can be read."""

    paper_id: str | None
    faults: list[Fault]

    def cut_short(self, line: bytes) -> BadRecord:
        """The same, said of a last line without its newline: one that ends before its JSON does was cut."""
        if self.faults[0].field != LINE or _ends_whole(line):
            return self
        return self._replace(faults=[Fault(LINE, f"the last line is cut short ({self.faults[0].reason})")])


def read_record(line: bytes, unknown: Counter[str]) -> Paper | BadRecord:
    """The paper of one line, with the sha256 of its embed text.

    Keys outside the table are counted in `unknown` and left out.
    """
    try:
        record = _decode(line)
        repeated = _repeated_key(line, record)
    except (ValueError, RecursionError) as error:
        # msgspec stops at the first fault and does not name NaN or surrogates; the slow reader does.
        return BadRecord(_guessed_id(line), [_malformed(line, error)])
    if type(record) is not dict:
        return BadRecord(None, [Fault(LINE, f"found {_shown(record)}, expected one JSON object")])
    if repeated is not None:
        return BadRecord(_guessed_id(line), [Fault(repeated, "the key occurs twice, expected once")])
    _count_unknown(record, unknown)
    return _paper(record)


def faults_of(record: dict[str, Any]) -> str | None:
    """Why `load` would refuse this record, None when it would not: whoever writes a snapshot asks first."""
    try:
        line = json.dumps(record, ensure_ascii=False, allow_nan=False).encode()
    except ValueError as error:
        return f"no JSON in UTF-8: {error}"
    read = read_record(line, Counter())
    return "; ".join(map(str, read.faults)) if isinstance(read, BadRecord) else None


def rules() -> list[Any]:
    """Everything that decides which records become papers, and how, as JSON; equal rules give equal papers."""
    return [RULES_VERSION, [[key, *field, read.__name__, absent] for key, field, read, absent in _TABLE]]


def count_key(unknown: Counter[str], key: str, times: int) -> None:
    """Count an unknown key; only `UNKNOWN_KEYS_MAX` names are told apart, so that no snapshot can swell a manifest."""
    name = key[:UNKNOWN_KEY_CHARS_MAX]
    unknown[name if name in unknown or len(unknown) < UNKNOWN_KEYS_MAX else OTHER_UNKNOWN_KEYS] += times


_decode = msgspec.json.Decoder().decode
# Every key of every object in a line is a quote, blanks and a colon; texts may hold the same, never fewer.
_KEYS = re.compile(rb'"[ \t\r]*:')
_ID = re.compile(rb'"id"[ \t]*:[ \t]*"([^"\\\x00-\x1f]{1,64})"')
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_URL = re.compile(r"https?://[^\s\x00-\x20\x7f-\x9f/?#][^\s\x00-\x20\x7f-\x9f]*", re.IGNORECASE)
_SHOWN_CHARS = 60


class _Unfit(Exception):
    """The reason against one value; never leaves this module."""


def _paper(record: dict[str, Any]) -> Paper | BadRecord:
    """Judge every key of the table, then the two texts; all faults of the record at once."""
    paper: Paper = {}
    faults: list[Fault] = []
    for key, field, read, absent in _TABLE:
        if key in record:
            try:
                paper[field.name] = read(record[key], field)
            except _Unfit as unfit:
                faults.append(Fault(key, str(unfit)))
        elif absent is None:
            faults.append(Fault(key, "absent, expected text"))
        else:
            paper[field.name] = absent
    if not faults:
        faults = _add_text_key(paper)
    if faults:
        paper_id = record.get("id")
        return BadRecord(paper_id if isinstance(paper_id, str) else None, faults)
    return paper


def _add_text_key(paper: Paper) -> list[Fault]:
    sources = (paper["title"], paper["abstract"], paper["keywords"], paper["authors"])
    # The search text is made by the index stage; here it is only measured, and only where it might be over its limit.
    if search_text_bytes_max(*sources) > FIELD[SEARCH_TEXT].bytes_max:
        try:
            _text(search_text(*sources), FIELD[SEARCH_TEXT])
        except _Unfit as unfit:
            return [Fault(SEARCH_TEXT, f"{unfit} (title, abstract, keywords and authors together)")]
    paper[TEXT_KEY] = text_sha256(embed_text(paper["title"], paper["abstract"]))
    return []


def _text(value: Any, field: Field) -> str:
    if type(value) is not str:
        raise _Unfit(f"found {_shown(value)}, expected text")
    # No character needs more than four bytes: most texts are never encoded just to be measured.
    if len(value) * 4 > field.bytes_max < len(value.encode()):
        raise _Unfit(f"found {len(value.encode()):,} bytes, expected at most {field.bytes_max:,}")
    if "\0" in value:
        raise _Unfit("found a NUL character, expected none")
    return value


def _texts(value: Any, field: Field) -> list[str]:
    if type(value) is not list:
        raise _Unfit(f"found {_shown(value)}, expected a list of texts")
    if len(value) > field.count_max:
        raise _Unfit(f"found {len(value):,} texts, expected at most {field.count_max:,}")
    for position, text in enumerate(value, 1):
        try:
            _text(text, field)
        except _Unfit as unfit:
            raise _Unfit(f"number {position} of the list: {unfit}") from None
    return value


def _line(value: Any, field: Field) -> str:
    text = _text(value, field)
    # A printable text (nearly every one) holds no control character; the search is ten times slower.
    if not text.isprintable() and _CONTROL.search(text):
        raise _Unfit(f"found a control character in {_shown(text)}, expected none")
    if _is_blank(text):
        raise _Unfit(f"found {_shown(text)}, expected text that is not blank")
    return text


def _identifier(value: Any, field: Field) -> str:
    text = _line(value, field)
    if text != text.strip():
        raise _Unfit(f"found white space around {_shown(text)}, expected none")
    return text


def _title(value: Any, field: Field) -> str:
    text = _text(value, field)
    if _is_blank(text):
        raise _Unfit(f"found {_shown(text)}, expected a title that is not blank")
    return text


def _is_blank(text: str) -> bool:
    """Whether `text` shows nothing: empty, white space, or only invisible characters."""
    # Nearly every text begins with a letter of English; the whole need not be looked at then.
    first = text[:1]
    return not (first.isascii() and first.isalnum()) and not visible(text)


def _area(value: Any, field: Field) -> str:
    return UNSPECIFIED_AREA if value is None else _line(value, field)


def _flag(value: Any, _field: Field) -> bool:
    if type(value) is not bool:
        raise _Unfit(f"found {_shown(value)}, expected true or false")
    return value


def _url(value: Any, field: Field) -> str:
    if value is None:
        return ""
    text = _text(value, field)
    if not _URL.fullmatch(text):
        raise _Unfit(f"found {_shown(text)}, expected an http(s) URL or null")
    return text


# key of the record, field it fills, its reader, value when the key is absent (None: required)
_TABLE: tuple[tuple[str, Field, Callable[[Any, Field], Any], Any], ...] = (
    ("id", FIELD[KEY], _identifier, None),
    ("title", FIELD["title"], _title, None),
    ("abstract", FIELD["abstract"], _text, ""),
    ("authors", FIELD["authors"], _texts, []),
    ("keywords", FIELD["keywords"], _texts, []),
    ("primary_area", FIELD["area"], _area, UNSPECIFIED_AREA),
    ("paper_type", FIELD["paper_type"], _line, UNSPECIFIED_TYPE),
    ("spotlight", FIELD["spotlight"], _flag, False),
    ("oral", FIELD["oral"], _flag, False),
    ("forum_url", FIELD["forum_url"], _url, ""),
    ("pdf_url", FIELD["pdf_url"], _url, ""),
)
RECORD_KEYS = tuple(key for key, *_ in _TABLE)
_KNOWN = frozenset(RECORD_KEYS)


def _count_unknown(record: dict[str, Any], unknown: Counter[str]) -> None:
    if not record.keys() <= _KNOWN:
        for key in record:
            if key not in _KNOWN:
                count_key(unknown, key, 1)


def _repeated_key(line: bytes, record: Any) -> str | None:
    """The first key that occurs twice in any object of the line; `record` is what the fast reader kept of it."""
    if type(record) is dict and len(_KEYS.findall(line)) == len(record):
        return None
    repeated: list[str] = []

    def watch(pairs: list[tuple[str, Any]]) -> None:
        names = Counter(name for name, _ in pairs)
        repeated.extend(name for name, times in names.items() if times > 1)

    json.loads(line.decode(), object_pairs_hook=watch)
    return repeated[0][:UNKNOWN_KEY_CHARS_MAX] if repeated else None


def _malformed(line: bytes, error: Exception) -> Fault:
    """Why the line is not JSON, in the reader's words where ours say nothing better."""
    if b"\0" in line:
        return Fault(LINE, f"found a NUL byte at byte {line.index(0) + 1}, expected none")
    return Fault(LINE, _malformation(line) or f"not JSON ({error}), expected one JSON object")


def _malformation(line: bytes) -> str | None:
    try:
        found = json.loads(line.decode(), parse_constant=_no_constant)
        if _SURROGATE.search(json.dumps(found, ensure_ascii=False)):
            return "found a lone surrogate (half of a \\uD83D\\uDE00 pair), expected whole characters"
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start + 1} ({error.reason}), expected UTF-8"
    except json.JSONDecodeError as error:
        return f"not JSON: {error.msg} at character {error.pos + 1}, expected one JSON object"
    except ValueError as error:
        return str(error)
    except RecursionError:
        return "nested too deep, expected one flat JSON object"
    return None


def _ends_whole(line: bytes) -> bool:
    """Whether the line is JSON to its end once what JSON does not allow within it is taken as it stands.

    NaN, NUL and other control characters, surrogates and bytes that are not UTF-8 break a line but do not cut it.
    """
    text = line.replace(b"\0", b" ").decode(errors="replace")
    try:
        # Not int: Python reads no number of more than 4,300 digits.
        json.loads(text, strict=False, parse_int=float)
    except (ValueError, RecursionError) as error:
        onwards = isinstance(error, RecursionError) or str(error).startswith("Extra data")
        return onwards and text.rstrip().endswith(("}", "]"))
    return True


def _no_constant(name: str) -> None:
    raise ValueError(f"found {name}, which is not JSON; expected a number or null")


def _guessed_id(line: bytes) -> str | None:
    """The id of a line that cannot be read as a whole, so that the message can name it."""
    found = _ID.search(line)
    try:
        return found[1].decode() if found else None
    except UnicodeDecodeError:
        return None


def _shown(value: Any) -> str:
    """A value in a message: its JSON kind, and itself when short."""
    if value is None:
        return "null"
    kind = {bool: "", int: "the number ", float: "the number ", str: "", list: "the list ", dict: "the object "}
    text = json.dumps(value)
    cut = text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 3] + "..."
    return kind[type(value)] + cut
