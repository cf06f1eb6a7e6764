"""
Write the man pages: section 8 from the commands, section 5 from the types of site.toml.

Usage: manual.py FOLDER VERSION SECONDS
"""

from __future__ import annotations

import gzip
import inspect
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import click

from hpcverify.cli import cli, describe_entry
from setting_tables import NO_DEFAULT, REQUIRED, SettingRow, list_site_tables

FILES = {
    "/etc/hpcverify/site.toml": "What the site changes; see hpcverify-site.toml(5).",
    "/var/lib/hpcverify": "The runs of this node; on a controller also the ledger.",
    "/usr/libexec/hpcverify": "The hooks for Slurm: prolog, epilog and healthcheck.",
}


def escape(text: str) -> str:
    """Return *text* so that troff prints it as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def bold(text: str) -> str:
    """Return *text* in bold."""
    return f"\\fB{escape(text)}\\fP"


def format_help(text: str) -> Iterator[tuple[str, str]]:
    """Yield each paragraph of a click help as its section and its troff."""
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        verbatim = paragraph.startswith("\b\n")
        lines = paragraph.removeprefix("\b\n").splitlines()
        section = "DESCRIPTION"
        if re.match(r"Examples?:$", lines[0]):
            section, lines = "EXAMPLES", lines[1:]
        elif lines[0].startswith("Exit status: "):
            section, lines[0] = "EXIT STATUS", lines[0].removeprefix("Exit status: ")
        body = escape(inspect.cleandoc("\n".join(lines)))
        yield section, f".PP\n.nf\n{body}\n.fi" if verbatim else f".PP\n{body}"


def format_options(command: click.Command, context: click.Context) -> str:
    """Return the options of *command* as a list of troff."""
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    return "\n".join(
        f".TP\n{bold(name)}\n{escape(' '.join(text.split()))}"
        for name, text in filter(None, records)
    )


def format_commands(command: click.Command, context: click.Context) -> str:
    """Return the commands of a group as a list of troff."""
    assert isinstance(command, click.Group)  # noqa: S101 - narrows the type
    groups = {
        section: {name: describe_entry(entry) for name, entry in entries.items()}
        for section, entries in getattr(command, "sections", {}).items()
    } or {
        "": {name: inner.get_short_help_str(limit=200) for name, inner in command.commands.items()}
    }
    path = context.command_path.replace(" ", "-")
    lines = []
    for group, commands in groups.items():
        lines += [f".SS {group}"] if group else []
        lines += [
            f".TP\n.BR {escape(f'{path}-{name}')} (8)\n{escape(text)}"
            for name, text in commands.items()
        ]
    return "\n".join(lines)


def write_pages(command: click.Command, parent: click.Context | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the body of the page of *command*, then those of its commands."""
    name = command.name if parent else "hpcverify"
    context = click.Context(command, parent, name, **command.context_settings)
    paragraphs = list(format_help(command.help or ""))
    summary = " ".join(paragraphs[0][1].split("\n")[1:]).rstrip(".")
    arguments = " ".join(command.collect_usage_pieces(context))
    sections = {
        "NAME": f"{escape(context.command_path.replace(' ', '-'))} \\- {summary}",
        "SYNOPSIS": f"{bold(context.command_path)} {escape(arguments)}",
    }
    for section, text in paragraphs:
        before = sections.get(section)
        sections[section] = f"{before}\n{text}" if before else text.removeprefix(".PP\n")
    inner = command.list_commands(context) if isinstance(command, click.Group) else []
    if inner:
        sections["COMMANDS"] = format_commands(command, context)
    sections["OPTIONS"] = format_options(command, context)
    if parent is None:
        sections["FILES"] = format_entries(FILES)
        sections["SEE ALSO"] = ".BR hpcverify\\-site.toml (5)"
    else:
        sections["SEE ALSO"] = ".BR hpcverify (8)"
    yield context.command_path.replace(" ", "-"), join_sections(sections)
    for inner_name in inner:
        assert isinstance(command, click.Group)  # noqa: S101 - narrows the type
        inner_command = command.get_command(context, inner_name)
        assert inner_command is not None  # noqa: S101 - it was listed
        yield from write_pages(inner_command, context)


def format_entries(entries: dict[str, str]) -> str:
    """Return terms with their texts as troff."""
    return "\n".join(f".TP\n{bold(term)}\n{escape(text)}" for term, text in entries.items())


def join_sections(sections: dict[str, str]) -> str:
    """Return the sections of a page in the order of man-pages(7)."""
    order = ["NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "OPTIONS", "EXIT STATUS"]
    named = [name for name in order if name in sections]
    named += [name for name in sections if name not in named]
    return "\n".join(f".SH {name}\n{sections[name]}" for name in named)


def format_setting(row: SettingRow) -> str:
    """Return a setting as a file has it, with what else its value may be."""
    kind = row.kind.replace("``", "") + (f", in {row.unit}" if row.unit else "")
    if row.default in (REQUIRED, NO_DEFAULT):
        return f"{row.name} = {kind}"
    return f"{row.name} = {row.default}   ({kind})"


def format_meaning(text: str) -> str:
    """Return *text* without the marks of docstrings."""
    return re.sub(r"``|\*(?=\w)|(?<=\w)\*(?=[.,;: ])", "", text)


def write_site_page() -> str:
    """Return the body of the page of site.toml."""
    settings = []
    for table in list_site_tables():
        settings += [f".SS {escape(table.heading)}"] if table.heading else []
        settings += [
            f".TP\n{bold(format_setting(row))}\n{escape(format_meaning(row.meaning))}"
            for row in table.rows
        ]
    return join_sections(
        {
            "NAME": "hpcverify\\-site.toml \\- configuration of hpcverify",
            "SYNOPSIS": escape("/etc/hpcverify/site.toml"),
            "DESCRIPTION": (
                "A TOML file, owned by root and writable by root alone. Every setting has a "
                "default, so a file is not needed.\n.PP\nAn unknown key is an error.\n"
                ".B hpcverify config check\nfinds mistakes before a run does."
            ),
            "SETTINGS": "\n".join(settings),
            "ENVIRONMENT": format_entries({"HPCVERIFY_CONFIG": "Another file."}),
            "SEE ALSO": ".BR hpcverify (8)",
        }
    )


def write_manual(folder: Path, version: str, seconds: int) -> None:
    """Write all pages into *folder*, compressed."""
    folder.mkdir(parents=True, exist_ok=True)
    day = datetime.fromtimestamp(seconds, UTC).date()
    pages = {f"{name}.8": body for name, body in write_pages(cli, None)}
    pages["hpcverify-site.toml.5"] = write_site_page()
    for name, body in pages.items():
        title, _, section = name.rpartition(".")
        head = f'.TH {escape(title.upper())} {section} {day} "hpcverify {version}" hpcverify'
        text = f"{head}\n.nh\n.ad l\n{body}\n"
        (folder / f"{name}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    write_manual(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
