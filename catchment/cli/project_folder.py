"""Where a command finds its project: `--project`, `-p` of every command, or the folder as its first word.

Commands that once took the folder as a word still do. A word is not both: with `--project` it is what the command is
about, such as a view.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from catchment.project.config import PROJECT_FILE

OptionalProject = Annotated[
    Path | None, typer.Option("--project", "-p", help="The project folder; by default this folder.")
]
FolderWord = Annotated[Path | None, typer.Argument(help="The same as --project.", show_default=False)]


def project_folder(word: Path | None, option: Path | None) -> Path:
    """Return the folder that was given either way; this folder if it was not."""
    if word is not None and option is not None and word != option:
        raise typer.BadParameter(f"two project folders are given: {word} and {option}")
    return option or word or Path()


def split_folder(words: Sequence[str], option: Path | None, named: str) -> tuple[Path, str]:
    """Return the project folder and the one thing that a command is about, which `named` names in the error."""
    if len(words) == 1:
        return option or Path(), words[0]
    if len(words) == 2:
        return project_folder(Path(words[0]), option), words[1]
    raise typer.BadParameter(f"expected {named}, got {len(words)} words: {' '.join(words)}")


def split_optional(words: Sequence[str], option: Path | None, named: str) -> tuple[Path, str | None]:
    """Return the project folder and the one thing, if any, that a command is about.

    One word is the folder, as it always was, unless the project is given or is in this folder and no folder of that
    name exists.
    """
    if not words:
        return option or Path(), None
    is_here = Path(PROJECT_FILE).is_file() and not Path(words[0]).is_dir()
    if len(words) == 1 and option is None and not is_here:
        return Path(words[0]), None
    return split_folder(words, option, named)
