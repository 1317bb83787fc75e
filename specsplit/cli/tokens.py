"""`specsplit tokens`: tokens for those who call the services of a cluster, and the file by which these know them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from specsplit.cli.say import say
from specsplit.errors import InvalidRequest
from specsplit.identity import CallerRole, digest

FOLDERS: Mapping[CallerRole, str] = {
    CallerRole.CLIENT: "clients",
    CallerRole.MEMBER: "members",
    CallerRole.OPERATOR: "operators",
}
"""Where the tokens of a role lie, so that each machine or container can be given those of its role alone."""
TOKENS = f"{FOLDERS[CallerRole.MEMBER]}/tokens.toml"
"""The file that services are given as tokens_file; whoever has it shows the token of members too."""
OWN = tuple(f"{FOLDERS[role]}/{role}.token" for role in (CallerRole.MEMBER, CallerRole.OPERATOR))
"""The tokens that are drawn whatever the clients are."""
_BYTES = 32
"""Random bytes in a token."""


def tokens(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to; it is made if it is not there.")],
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="A client with a token of its own; any number. Default: client."),
    ] = None,
) -> None:
    """Draw tokens for callers, and the file by which services know them.

    They are clients/NAME.token for each client, members/member.token, operators/operator.token, and members/tokens.toml. A service
    needs the folder members, and nothing else. What is there already stays: a folder that has tokens is left as it is, and of
    members' and operators' it is told which are missing.
    """
    if (folder / TOKENS).exists():
        say(f"{folder / TOKENS} is there already; nothing was changed")
        _tell_missing(folder)
        return
    _check_layout(folder)
    roles = dict.fromkeys(clients or ["client"], CallerRole.CLIENT)
    if taken := roles.keys() & {CallerRole.MEMBER, CallerRole.OPERATOR}:
        raise InvalidRequest("client", f"is {min(taken)!r}, the name of a role; expected another name")
    drawn = write(folder, {**roles, "member": CallerRole.MEMBER, "operator": CallerRole.OPERATOR})
    say(f"{folder}: {', '.join(str(path.relative_to(folder)) for path in drawn)}")


def _check_layout(folder: Path) -> None:
    """Raise InvalidRequest for a folder with tokens that lie where they did before there was a folder for each role."""
    name = Path(TOKENS).name
    if (folder / name).exists():
        raise InvalidRequest(
            "folder",
            f"{folder} has tokens already, in one folder for all roles ({name} is at its top); "
            "move them as docs/security.md says (New ones), or name another folder",
        )


def _tell_missing(folder: Path) -> None:
    """Say on stderr which token has to be drawn anew, and how. None can be read out of what the services know."""
    for name in OWN:
        if not (folder / name).exists():
            say(
                f"{folder / name} is missing; if nobody has it any more, remove {folder / TOKENS} and draw again: all tokens are new then",
                err=True,
            )


def write(folder: Path, roles: Mapping[str, CallerRole]) -> list[Path]:
    """Draw a token for every name, and write them and what knows them, which comes last; the paths. Raises InvalidRequest."""
    entries: list[str] = []
    paths: list[Path] = []
    try:
        for place in FOLDERS.values():
            (folder / place).mkdir(parents=True, exist_ok=True)
        for name, role in roles.items():
            token = secrets.token_urlsafe(_BYTES)
            paths.append(_private(folder / FOLDERS[role] / f"{_checked(name)}.token", token + "\n"))
            entries.append(f'[{name}]\nroles = ["{role}"]\nsha256 = "{digest(token)}"\n')
        return [*paths, _private(folder / TOKENS, "\n".join(entries))]
    except OSError as error:
        raise InvalidRequest("folder", f"cannot write into {folder}: {error.strerror}") from error


def _checked(name: str) -> str:
    """Raise InvalidRequest for a name that is no key of TOML, or no file name."""
    if not name or not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
        raise InvalidRequest("client", f"is {name!r}, expected letters, digits, - and _")
    return name


def _private(path: Path, text: str) -> Path:
    """Write a file that nobody else may read: whole, or not at all."""
    whole = path.with_name(f".{path.name}.new")
    whole.touch(mode=0o600)
    whole.chmod(0o600)
    whole.write_text(text)
    return whole.replace(path)
