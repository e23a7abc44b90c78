"""A disk on which one operation fails."""

import builtins
import errno
import os
from contextlib import contextmanager


class Disk:
    """Lets one operation on the disk fail, and counts them."""

    NAMES = ("open", "write", "fsync", "ftruncate", "replace", "mkdir", "unlink", "utime", "lseek", "fstat")

    def __init__(self, monkeypatch):
        self.monkeypatch, self.real = monkeypatch, {name: getattr(os, name) for name in self.NAMES}
        self.real_open, self.count, self.fails_at, self.code = builtins.open, 0, None, errno.ENOSPC

    @contextmanager
    def fail(self, at, code):
        """The operation number ``at`` fails; with code 0 a write is short before the disk is full."""
        self.count, self.fails_at, self.code = 0, at, code
        with self.monkeypatch.context() as patch:
            for name in self.NAMES:
                patch.setattr(os, name, self.operation(name))
            patch.setattr(builtins, "open", self.open)
            yield

    def operation(self, name):
        def operate(*args, **kwargs):
            if self.due():
                if name == "write" and self.code == 0:
                    self.real["write"](args[0], bytes(args[1])[: len(args[1]) // 2])
                raise OSError(self.code or errno.ENOSPC, os.strerror(self.code or errno.ENOSPC))
            return self.real[name](*args, **kwargs)

        return operate

    def open(self, file, mode="r", *args, **kwargs):
        if set(mode) & set("wxa+") and self.due():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real_open(file, mode, *args, **kwargs)

    def due(self):
        self.count += 1
        return self.count == self.fails_at
