"""Files of the user: found by patterns, decoded, and read record by record. Corpora, conversations and evaluation
items share this one way of decoding.

A byte order mark (UTF-8, UTF-16, UTF-32) decides the encoding; without one a file is UTF-8. Corpora replace broken
bytes and lone surrogates by U+FFFD and count the records; evaluation items refuse them. Free of heavy imports: the
Snakefile imports this module.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

from iha.errors import DataError

#: Byte order marks and their encodings; UTF-32's little-endian mark begins with UTF-16's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: First bytes of files that are no text, whatever their name says.
_MAGIC = (
    (b"\x1f\x8b", "gzip"),
    (b"PAR1", "Parquet"),
    (b"PK\x03\x04", "zip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\x00", "xz"),
)
_HEAD = 4096
REPLACEMENT = "\ufffd"


def matching(patterns: Iterable[str]) -> list[Path]:
    """Files that match any of the glob patterns, sorted, each once."""
    paths = {Path(name) for pattern in patterns for name in glob(pattern, recursive=True)}  # noqa: PTH207 (absolute)
    return sorted(path for path in paths if path.is_file())


def stamp(path: Path) -> list[int]:
    """Size and modification time of a file; empty if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return []
    return [status.st_size, status.st_mtime_ns]


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates (half of a broken emoji) by U+FFFD, so that the text has a UTF-8 form."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def has_surrogates(text: str) -> bool:
    """Whether the text has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def decode(raw: bytes, encoding: str = "utf-8") -> tuple[str, bool]:
    """The text, and whether anything in it was replaced by U+FFFD."""
    try:
        return raw.decode(encoding), False
    except UnicodeDecodeError:
        return raw.decode(encoding, "replace"), True


def _sniff(head: bytes, path: Path) -> tuple[str, int]:
    """Encoding of a text file from its first bytes, and the length of its byte order mark.

    Raises:
        DataError: the bytes are no text.
    """
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding, len(mark)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            raise DataError(
                f"{path}: holds {kind} data, but its name ends in {''.join(path.suffixes[-2:]) or path.name!r}. "
                f"Decompress it, or give it the ending of its format (.jsonl.gz, .parquet)."
            )
    if (place := head.find(b"\0")) >= 0:
        raise DataError(
            f"{path}: byte {place} is NUL: binary data, or UTF-16 without a byte order mark. Convert it to UTF-8."
        )
    return "utf-8", 0


def read_text(path: Path) -> tuple[str, bool]:
    """Text of a file, and whether anything in it was replaced.

    Raises:
        DataError: the file is no text.
    """
    raw = path.read_bytes()
    encoding, mark = _sniff(raw[:_HEAD], path)
    return decode(raw[mark:], encoding)


def read_lines(path: Path) -> Iterator[tuple[int, str, bool]]:
    r"""Lines that are not blank: number from 1, text, whether anything in it was replaced.

    Lines end at `\n` alone: `str.splitlines` would also split at U+2028 inside a text. A name that ends in .gz is
    decompressed.

    Raises:
        DataError: the file is no text.
    """
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as raw:
        handle = raw if isinstance(raw, io.BufferedReader) else io.BufferedReader(raw)
        encoding, mark = _sniff(handle.peek(_HEAD)[:_HEAD], path)
        handle.read(mark)
        # Wider encodings have 0x0A inside other characters: they are decoded first, then split.
        lines = handle if encoding == "utf-8" else io.BytesIO(handle.read())
        if encoding == "utf-8":
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, *decode(line)
        else:
            text, replaced = decode(lines.read(), encoding)
            for number, part in enumerate(text.split("\n"), 1):
                if part.strip():
                    yield number, part, replaced and REPLACEMENT in part


def read_records(path: Path, *, objects: bool = True) -> Iterator[tuple[str, Any]]:
    """Strict reader of JSON lines: (place, value), with the place as "FILE, line 3". Any encoding with a mark is read.

    Args:
        path: the file.
        objects: refuse values that are no JSON object.

    Raises:
        DataError: a line cannot be decoded, is not JSON, or is no object; names file and line.
    """
    for number, line, replaced in read_lines(path):
        place = f"{path}, line {number}"
        if replaced:
            raise DataError(f"{place}: not UTF-8. Convert the file to UTF-8.")
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{place}: not JSON ({error}). Correct the line or replace the file.") from error
        if objects and not isinstance(value, dict):
            raise DataError(f"{place}: no JSON object; needed: one object per line.")
        yield place, value


def read_rows(path: Path) -> list[Any]:
    """Values of a file of JSON lines.

    Raises:
        DataError: a line is not JSON.
    """
    return [value for _, value in read_records(path, objects=False)]
