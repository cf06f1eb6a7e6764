"""The files by which a shell completes the command line."""

from click.shell_completion import get_completion_class

from hpcverify.cli import cli

SHELLS = {
    "bash": "bash_complete $1)",
    "zsh": "zsh_complete hpcverify)",
    "fish": "(commandline -t) hpcverify)",
}
"""What asks for the completions, in click's file for each shell."""


def write_completion(shell: str, program: str) -> str:
    """
    Write the completion file for *shell*, which asks *program*.

    That of click starts what the user has typed, or what PATH has: any file of that name.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101 - click has these three
    source = kind(cli, {}, "hpcverify", "_HPCVERIFY_COMPLETE").source()
    asked = SHELLS[shell]
    assert source.count(asked) == 1  # noqa: S101 - or click has changed
    return source.replace(asked, f"{asked.rpartition(' ')[0]} {program})")
