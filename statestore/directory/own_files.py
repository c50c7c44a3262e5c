"""Files and folders of this user. Every file of a state directory is opened here.

Another user of the host may have made a folder or a file first, e.g. below /tmp. A symbolic link would let that user
choose which of our files is emptied, and a folder would let that user replace our files. Folders are checked when they
are first used, and each file when it is opened.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from pathlib import Path

from penstock.topology.errors import ProcessorStateError

#: Mode of new files: the folder decides whether the group reaches them.
FILE_MODE = 0o640
ROOT_USER = 0


def check_folder(path: Path, setting: str = "state.dir", shared: bool = False) -> None:
    """Check that only this user, root and the group can change what a folder contains.

    setting: where the user sets another folder. shared: other users may have folders of their own beside ours: it may
    be a folder like /tmp (sticky), or the root of a mounted volume, which containers get with any owner and mode.
    Raises ProcessorStateError with the remedy.
    """
    if shared and path.is_mount():
        return
    for found in (path.lstat(), path.stat()):  # a link and its target
        if not _is_trusted(found.st_uid):
            owner = user_name(found.st_uid)
            raise ProcessorStateError(
                f"The folder {path} belongs to the user {owner}, not to {user_name(os.geteuid())}, so its files cannot "
                f"be trusted. Set {setting} to a folder of your own, run the command as that user (sudo -u "
                f"{_sudo_name(owner)} …), or, if the application runs as {user_name(os.geteuid())} from now on, change "
                "the owner (chown -R)"
            )
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH and not (shared and mode & stat.S_ISVTX):
        raise ProcessorStateError(
            f"All users may write to the folder {path} (mode {stat.S_IMODE(mode):o}), so its files cannot be trusted. "
            f"Check what is in it and run chmod o-w {path}, or set {setting} to another folder"
        )


def open_own(path: Path, flags: int) -> int:
    """Return a file descriptor of a regular file of this user or root; a missing one is created if flags say so.

    To read, the owner of the folder will do, too: its files are a service's, which commands of root and of its group
    look at. Nothing is truncated before this check: flags must not have O_TRUNC. Raises ProcessorStateError for a
    symbolic link, for another user's file, and for anything but a regular file; OSError as os.open does.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, FILE_MODE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # ENXIO: a socket, or a pipe without a reader
            raise ProcessorStateError(f"{path} is {_kind(path)}, which Penstock did not make: delete it") from error
        raise
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ProcessorStateError(f"{path} is {_kind(path)}, which Penstock did not make: delete it")
        reads = flags & os.O_ACCMODE == os.O_RDONLY
        if not _is_trusted(found.st_uid) and not (reads and found.st_uid == path.parent.stat().st_uid):
            raise ProcessorStateError(
                f"{path} belongs to the user {user_name(found.st_uid)}, not to {user_name(os.geteuid())}: delete it, "
                "or change its owner (chown)"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: Path) -> str:
    """Return the text of a file. Raises what open_own raises, and ValueError for bytes that are not UTF-8."""
    with os.fdopen(open_own(path, os.O_RDONLY), encoding="utf-8") as file:
        return file.read()


def write_atomically(path: Path, text: str) -> None:
    """Replace a file's text atomically: a crash leaves the old or the new text.

    Raises ProcessorStateError if the disk is full or the directory is not writable.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)  # left by a killed process with this id
        with os.fdopen(open_own(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ProcessorStateError(f"Cannot write {path}: {error}; check the disk and its permissions") from error


def user_name(user: int) -> str:
    """Return the name of a user by its number, or the number if it has none."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _sudo_name(name: str) -> str:
    return f"'#{name}'" if name.isdigit() else name


def _is_trusted(user: int) -> bool:
    return user in (ROOT_USER, os.geteuid())


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "a symbolic link"
    return "a folder" if path.is_dir() else "no regular file"
