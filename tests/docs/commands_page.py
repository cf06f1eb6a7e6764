"""The commands of docs/reference/commands.md, from click."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from textwrap import dedent

import click

from hpcverify.cli import COMMAND_GROUPS, cli
from tests.docs.markdown import format_code, format_text, write_block, write_table

UNWRAPPED = "\b"
"""Where a paragraph of a help text begins that click does not wrap."""


def write_commands() -> Iterator[str]:
    """Yield every command, in the groups and the order of the help."""
    context = click.Context(cli, info_name="hpcverify")
    for group, names in COMMAND_GROUPS.items():
        yield f"## {group}"
        yield ""
        for name in names:
            command = cli.get_command(context, name)
            assert command is not None
            yield from _write_command(command, click.Context(command, context, name))


def _write_command(command: click.Command, context: click.Context) -> Iterator[str]:
    path = context.command_path.removeprefix("hpcverify ")
    yield f"### {path}"
    yield ""
    yield from write_block("text", " ".join([context.command_path, *_list_usage(context)]))
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from _write_paragraph(paragraph)
    options = [p for p in command.get_params(context) if isinstance(p, click.Option)]
    rows = [_list_cells(option, context) for option in options if "--help" not in option.opts]
    yield from write_table(("option", "meaning", "default"), rows)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from _write_command(inner, click.Context(inner, context, name))


def _list_usage(context: click.Context) -> list[str]:
    return context.command.collect_usage_pieces(context)


def _write_paragraph(paragraph: str) -> Iterator[str]:
    if not paragraph.startswith(UNWRAPPED):
        yield format_text(paragraph)
        yield ""
        return
    head, _, rest = paragraph.removeprefix(UNWRAPPED).lstrip("\n").partition("\n")
    if head.startswith("Example"):
        yield from write_block("sh", dedent(rest))
    else:
        yield from write_block("text", f"{head}\n{rest}".rstrip())


def _name_value(option: click.Option, context: click.Context) -> str:
    """Name the value of an option, as help does but for its longest words."""
    if isinstance(option.type, click.DateTime):
        return "DATE"
    return option.make_metavar(context).removesuffix(" RANGE")


def _list_cells(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    """Name an option, what it means, and its default if help shows one."""
    extra = option.get_help_extra(context)
    value = "" if option.is_flag or option.count else f" {_name_value(option, context)}"
    names = ", ".join(sorted(option.opts, key=len, reverse=True))
    limits = "; ".join(filter(None, (extra.get("required", ""), extra.get("range", ""))))
    meaning = format_text(option.help or "") + (f" ({format_text(limits)})" if limits else "")
    return format_code(names + value), meaning, format_code(str(extra.get("default", "")))
