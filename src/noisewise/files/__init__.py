"""Files that survive a crash, are their owner's alone, and are read with suspicion."""

from noisewise.files.durable import (
    open_regular,
    private_file,
    private_folder,
    replace_file,
    sync_folder,
    write_anew,
)
from noisewise.files.foreign import decode, read_foreign, read_foreign_text
from noisewise.files.locks import locked, process_guard

__all__ = [
    "decode",
    "locked",
    "open_regular",
    "private_file",
    "private_folder",
    "process_guard",
    "read_foreign",
    "read_foreign_text",
    "replace_file",
    "sync_folder",
    "write_anew",
]
