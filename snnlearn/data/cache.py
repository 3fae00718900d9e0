"""Keep computed arrays on disk, under a key that covers everything they depend on.

A file is written under another name, flushed and then renamed, so that its own name never stands for half of
it; it ends in a marker, each array has a checksum, and it holds its options in full.  A file that fails any
of this is made again.
"""

import hashlib
import json
import logging
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from snnlearn.data.errors import DataError

logger = logging.getLogger("snnlearn.data")

Arrays = dict[str, np.ndarray]
MARKER = "complete"
OPTIONS = "options"


def cache_folder(given: str | Path | None = None) -> Path:
    """Return a folder that can be written: the given one, or ``$XDG_CACHE_HOME/snnlearn``, or
    ``~/.cache/snnlearn``.

    Where the default cannot be written, a folder in the system's temporary directory takes its place, and the
    log says so.

    Raises:
        DataError: a folder was given, and it cannot be written.
    """
    folder = _default_folder() if given is None else Path(given).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        if given is not None:
            raise DataError(
                f"the cache folder {folder} cannot be written ({error}); give one that can, or leave it out for the "
                "default"
            ) from error
        fallback = Path(tempfile.gettempdir()) / f"snnlearn-{os.getuid() if hasattr(os, 'getuid') else 'cache'}"
        fallback.mkdir(parents=True, exist_ok=True)
        logger.warning("the cache folder %s cannot be written (%s); using %s", folder, error, fallback)
        return fallback


def cached_arrays(folder: Path, name: str, options: Mapping[str, object], make: Callable[[], Arrays]) -> Arrays:
    """Return the arrays made under these options before, or make them and keep them.

    Args:
        folder: an existing folder.
        name: start of the file's name; the key follows it.
        options: everything the arrays depend on, as plain values; changing any of them changes the key.
        make: makes the arrays; called where no intact file of this key lies in the folder.

    Example:
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make = lambda: {"x": np.arange(3)}
        ...     first = cached_arrays(Path(folder), "numbers", {"n": 3}, make)
        ...     again = cached_arrays(Path(folder), "numbers", {"n": 3}, dict)
        >>> again["x"].tolist()
        [0, 1, 2]
    """
    text = json.dumps(dict(options), sort_keys=True)
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"
    if path.exists():
        try:
            return _read(path, text)
        except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as error:
            logger.warning("the cached file %s is damaged (%s); making it again", path, error)
    arrays = make()
    try:
        _write(path, text, arrays)
    except OSError as error:
        logger.warning("could not keep %s (%s); it will be made again next time", path, error)
    return arrays


def _default_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(os.path.expanduser("~"), ".cache")) / "snnlearn"


def _read(path: Path, text: str) -> Arrays:
    with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    if not arrays.pop(MARKER).all() or str(arrays.pop(OPTIONS)) != text:
        raise ValueError("it was made under other options, or was not finished")
    return arrays


def _write(path: Path, text: str, arrays: Arrays) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.stem, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **{OPTIONS: np.array(text)}, **arrays, **{MARKER: np.array(True)})  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)  # renamed by now, unless something went wrong
