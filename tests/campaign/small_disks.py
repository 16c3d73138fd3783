"""Small disks for the folders of some roles: a tmpfs each, which only root can mount.

What is on them is copied to the folder below when the deployment is closed, and back when it goes on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

DISK_BYTES = 96 * 2**20


@dataclass
class SmallDisks:
    """The disks of some folders; where none can be mounted, the folders stay as they are."""

    folders: Sequence[Path]
    are_mounted: bool = False

    def mount(self) -> None:
        """Mount what is not mounted yet, with what the folders hold; a disk that is left from before is used again."""
        self.are_mounted = bool(self.folders) and os.geteuid() == 0 and all(_mount(folder) for folder in self.folders)

    def unmount(self) -> None:
        """Put what is on the disks where a later campaign finds it."""
        for folder in self.folders:
            if folder.is_mount():
                below = _below(folder)
                shutil.rmtree(below, ignore_errors=True)
                shutil.copytree(folder, below)
                subprocess.run(["umount", "-l", str(folder)], check=True)
                folder.rmdir()
                below.rename(folder)


def _mount(folder: Path) -> bool:
    """Mount a disk at a folder and put its content there; return whether that was permitted."""
    below = _below(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_mount():
        return True
    if below.exists():  # the last campaign was ended after it had copied the content there
        shutil.rmtree(folder)
    else:
        folder.rename(below)
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True, check=False).returncode:
        folder.rmdir()
        below.rename(folder)
        return False
    shutil.copytree(below, folder, dirs_exist_ok=True)
    return True


def _below(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-below")
