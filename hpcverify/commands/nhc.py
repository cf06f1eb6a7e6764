"""``hpcverify setup nhc``: begin with the configuration of NHC."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from hpcverify.commands._controller import record_command
from hpcverify.console import echo
from hpcverify.errors import ConfigError, StoreError
from hpcverify.plan.config import Site, SiteFile, convert_config
from hpcverify.plan.suite import load_suite, make_plan
from hpcverify.plan.toml import write_value
from hpcverify.records import documents
from hpcverify.summary.printable import make_printable

if TYPE_CHECKING:
    from hpcverify.plan.nhc.checks import Imported

SUITE = "prolog"
"""The suite that runs what is imported; by it, the result is validated."""


@click.command("nhc")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a new site file to FILE.",
)
@record_command()
def command(file: Path, output: Path | None) -> None:
    """
    Convert an nhc.conf into a site file, with expectations for the check host.

    Prints the site file (TOML). Lines that could not be converted go to standard error, and
    into the file as comments, each with its reason. Exit status 2 if FILE is not an nhc.conf.

    \b
    Example:
      hpcverify setup nhc /etc/nhc/nhc.conf -o from-nhc.toml
    """  # noqa: D301 - \b is click's mark for text that is not to be wrapped
    from hpcverify.plan.nhc.checks import import_nhc

    try:
        imported = import_nhc(file.read_text(encoding="utf-8-sig", errors="replace"))
    except OSError as exc:
        raise ConfigError(f"{file} cannot be read: {exc.strerror}") from exc
    except ConfigError as exc:
        raise ConfigError(_make_line(f"{file}: {exc}")) from exc
    if not imported.turned and all("||" not in line.text for line in imported.unturned):
        raise ConfigError(f"{file} has no line as NHC writes them: target || check arguments")
    site = convert_config(imported.site, SiteFile, str(file))
    make_plan(load_suite(SUITE), Site(**asdict(site), path=str(file)))
    head = f"# From {_make_line(file.name)}."
    text = "\n".join([head, *_write_site(imported), *_list_comments(imported)])
    if output is None:
        echo(text)
    else:
        try:
            documents.write_new(output, f"{text}\n".encode())
        except FileExistsError:
            fix = "name another file, and copy what you want to keep"
            raise ConfigError(f"{output} is there already, and is not overwritten: {fix}") from None
        except StoreError as exc:
            raise ConfigError(str(exc)) from exc
        echo(_make_line(f"{output}: {imported.turned} lines turned"), sys.stderr)
    for line in imported.unturned:
        echo(_make_line(f"line {line.number}: {line.text}: {line.reason}"), sys.stderr)


def _make_line(text: str) -> str:
    """Make one line of *text*, which is not ours, to print and to stand in a comment."""
    return " ".join(make_printable(text).split())


def _list_comments(imported: Imported) -> list[str]:
    lines = [
        f"# line {line.number}: {_make_line(line.text)}\n#   {_make_line(line.reason)}"
        for line in imported.unturned
    ]
    return ["", "# Not turned, or not all of the line:", *lines] if lines else []


def _write_site(imported: Imported) -> list[str]:
    lines: list[str] = []
    for expectation in imported.site.get("params", {}).get("host", {}).get("expect", []):
        lines += ["", "[[params.host.expect]]"]
        for key, value in expectation.items():
            if isinstance(value, list):
                lines += [f"{key} = [", *(f"    {write_value(item)}," for item in value), "]"]
            else:
                lines.append(f"{key} = {write_value(value)}")
    return lines
