"""`catchment keys`: a private authority, and the certificates and tokens of a project's sites and people."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from catchment.cli.commands.show import ProjectOption
from catchment.cli.output import JsonFlag, emit
from catchment.errors import ConfigError
from catchment.project.config import PROJECT_FILE, Project
from catchment.project.option_kinds import site_name
from catchment.project.options import did_you_mean

if TYPE_CHECKING:
    from catchment.keys.key_folder import IssuedKeys, KeyFolder

DEFAULT_FOLDER = "keys"
DAY_US = 86_400 * 1_000_000
AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 365
GRACE_DAYS = 7  # how long a token that was replaced is still taken

SiteArgument = Annotated[str, typer.Argument(help="The site, as catchment.toml names it, or the name of a person.")]
Days = Annotated[int, typer.Option(min=1, help="How long the certificate is valid.")]
Role = Annotated[
    str,
    typer.Option(help="site; or operator (may change the deployment) or reader (may look), for a person."),
]
Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", help="A further name or address at which other sites find this one; may be repeated."),
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    keys = typer.Typer(help="Make and replace the certificates and tokens of sites.", no_args_is_help=True)
    keys.command(name="init", epilog="Example: catchment keys init -p my-project")(make)
    keys.command(epilog="Example: catchment keys issue eu -p my-project --host eu.example.org")(issue)
    keys.command(epilog="Example: catchment keys rotate eu -p my-project")(rotate)
    keys.command(name="list", epilog="Example: catchment keys list -p my-project")(show)
    app.add_typer(keys, name="keys")


def make(project: ProjectOption = Path(), days: Days = CERTIFICATE_DAYS, as_json: JsonFlag = False) -> None:
    """Make an authority, and a certificate and a token for every site of a project."""
    given = Project.load(project)
    folder = _folder(given)
    folder.create(given.name, max(days, AUTHORITY_DAYS))
    issued = [folder.issue(site, _hosts(given, site), days) for site in given.sites]
    emit({"folder": str(folder.folder), "keys": _rows(issued)}, as_json, lambda a: _next_steps(given, a))


def issue(
    site: SiteArgument,
    project: ProjectOption = Path(),
    host: Hosts = None,
    role: Role = "site",
    days: Days = CERTIFICATE_DAYS,
    as_json: JsonFlag = False,
) -> None:
    """Give a site or a person that has none a certificate and a token."""
    given = Project.load(project)
    if role == "site":
        issued = _folder(given).issue(_declared(given, site), [*(host or ()), *_hosts(given, site)], days)
        emit({"keys": _rows([issued])}, as_json, lambda _: _copy_hint(given, site))
        return
    issued = _folder(given).issue(_person(given, site, role), (), days, role)
    emit({"keys": _rows([issued])}, as_json, lambda _: _person_hint(given, site))


def rotate(
    site: SiteArgument,
    project: ProjectOption = Path(),
    host: Hosts = None,
    days: Days = CERTIFICATE_DAYS,
    grace_days: Annotated[
        int, typer.Option(min=0, help="How long the previous token is still taken; 0 if it was stolen.")
    ] = GRACE_DAYS,
    as_json: JsonFlag = False,
) -> None:
    """Replace the certificate and the token of a site or person; running processes take up the new files."""
    given = Project.load(project)
    hosts = _hosts(given, site) if site in given.sites else []
    issued = _folder(given).rotate(site, [*(host or ()), *hosts], days, grace_days)
    emit({"keys": _rows([issued])}, as_json, lambda _: _copy_hint(given, site))


def show(project: ProjectOption = Path(), as_json: JsonFlag = False) -> None:
    """List the keys of all sites and when they end to be valid."""
    folder = _folder(Project.load(project))
    answer = {"authority_expires": _instant(folder.authority_expires_us), "keys": _rows(folder.list_keys())}
    emit(answer, as_json, _table)


def _folder(project: Project) -> KeyFolder:
    from catchment.keys.key_folder import KeyFolder

    return KeyFolder(project.folder / (project.security.keys or DEFAULT_FOLDER))


def _declared(project: Project, site: str) -> str:
    if site not in project.sites:
        where = str(project.folder / PROJECT_FILE)
        raise ConfigError(f"there is no site {site!r}", where=where, hint=did_you_mean(site, project.sites))
    return site


def _person(project: Project, name: str, role: str) -> str:
    from catchment.keys.tokens import ROLES

    if role not in ROLES:
        raise ConfigError(f"there is no role {role!r}", hint=did_you_mean(role, ROLES))
    if name in project.sites:
        hint = "give the person another name: a certificate that names a site may send as that site"
        raise ConfigError(f"{name!r} is a site", where=str(project.folder / PROJECT_FILE), hint=hint)
    try:
        return str(site_name().read(name))
    except ValueError as error:
        raise ConfigError(f"{name!r} cannot be a name", hint=f"it must be {site_name().expected}") from error


def _hosts(project: Project, site: str) -> list[str]:
    """Return the hosts at which other sites find a site, as far as they are declared."""
    declared = project.sites[site]
    found_at = [at[0] for at in (declared.address, declared.listen) if at is not None]
    return [host for host in found_at if host not in ("0.0.0.0", "::")]


def _rows(issued: Iterable[IssuedKeys]) -> list[dict[str, Any]]:
    return [
        {
            "site": keys.site,
            "role": keys.role,
            "folder": str(keys.folder),
            "certificate_expires": _instant(keys.certificate_expires_us),
            "days_left": _days_left(keys.certificate_expires_us),
            "previous_token_until": _instant(keys.previous_token_until_us) if keys.previous_token_until_us else None,
        }
        for keys in issued
    ]


def _instant(at_us: int) -> str:
    return datetime.fromtimestamp(at_us // 1_000_000, UTC).isoformat()


def _days_left(at_us: int) -> int:
    return (at_us - time.time_ns() // 1_000) // DAY_US


def _next_steps(project: Project, answer: Mapping[str, Any]) -> str:
    folder = Path(answer["folder"])
    lines = [f"made {folder}: an authority, and keys for {', '.join(row['site'] for row in answer['keys'])}"]
    if project.security.keys is None:
        lines.append(f'next: in {project.folder / PROJECT_FILE} set keys = "{DEFAULT_FOLDER}" in [security]')
    lines.append(f"then copy {folder}/SITE to the machine of each site, to the same place; copy nothing else of it")
    return "\n".join(lines)


def _copy_hint(project: Project, site: str) -> str:
    folder = _folder(project).folder
    receivers = f"and the tokens.toml in {folder}/{project.center} (and of relays) to theirs"
    return f"next: copy {folder / site} to the machine of {site}, {receivers}"


def _person_hint(project: Project, name: str) -> str:
    folder = _folder(project).folder
    receiver = f"and {folder / project.center / 'tokens.toml'} to the machine of the center"
    return f"next: copy {folder / name} to the person's ~/.config/catchment/keys, {receiver}"


def _table(answer: Mapping[str, Any]) -> Table:
    table = Table("name", "role", "certificate ends", "days left", "previous token until", title_justify="left")
    for row in answer["keys"]:
        left = row["days_left"]
        shown = f"{left}" if left >= 0 else "expired"
        table.add_row(row["site"], row["role"], row["certificate_expires"], shown, row["previous_token_until"] or "-")
    table.caption = f"the authority's own certificate ends {answer['authority_expires']}"
    return table
