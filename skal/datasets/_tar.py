"""Files straight out of a compressed archive."""

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

__all__ = ["read_members"]


def read_members(path: Path, names: Sequence[str]) -> dict[str, bytes]:
    """Return the content of the named members, in one pass and without writing anything to disk."""
    contents: dict[str, bytes] = {}
    try:
        with gzip.open(path) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    # "./folder/file" and "folder/file" are the same member.
                    name = str(PurePosixPath(member.name))
                    file = archive.extractfile(member) if name in names and member.isfile() else None
                    if file is not None:
                        contents[name] = file.read()
            # Only at the end of the stream does gzip compare the checksum; tar stops before.
            while stream.read(1 << 20):
                pass
    except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated archive ({error}). Get the file again.") from error
    missing = [name for name in names if name not in contents]
    if missing:
        raise ValueError(f"{path}: the archive lacks {', '.join(missing)}. Get the file again.")
    return contents
