"""Say what is wrong with small files, by what they hold: each content names its origin."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from itertools import product

import hpcverify.check as hv
from hpcverify.units import format_count
from hpcverify_checks.exact.mismatch import compare_bytes, list_bits
from hpcverify_checks.storage.fio_runner import FaultError
from hpcverify_checks.storage.small_files import FILE_BYTES, Answers, SmallFiles

MAX_DESCRIBED_FILES = 10


def find_wrong(files: SmallFiles, answers: Answers) -> Sequence[int]:
    """List the files that do not hold what was written to them last."""
    return [
        number
        for number, answer in answers.items()
        if answer != files.make_content(number, files.find_generation(number))
    ]


def explain_wrong(files: SmallFiles, first: Answers, second: Answers) -> FaultError:
    """Say what the wrong files of the *first* read hold, and whether the *second* agrees."""
    lost, lost_again = (list(answers.values()).count(None) for answers in (first, second))
    if lost_again > lost or lost_again == files.count:
        raise hv.Unable(
            f"{files.folder} was emptied while the check ran: keep other programs out of it",
            hv.Cause.MISCONFIGURED,
            hv.Remedy.FIX_CONFIGURATION,
        )
    wrong = find_wrong(files, first)
    lines = [
        f"{files.locate(n)} {_describe(files, n, first[n])}" for n in wrong[:MAX_DESCRIBED_FILES]
    ]
    right_again = not set(wrong) & set(find_wrong(files, second))
    text = f"{len(wrong)} of {files.count} small files are wrong: {lines[0]}"
    evidence = {
        "wrong files": "\n".join(lines),
        "read again": "clean" if right_again else "wrong",
    }
    return FaultError(errno.EILSEQ, text, evidence)


def _describe(files: SmallFiles, number: int, answer: bytes | None) -> str:
    if answer is None:
        return "is lost"
    if len(answer) != FILE_BYTES:
        return f"has {len(answer)} of {FILE_BYTES} bytes"
    for other, generation in product(range(files.count), range(2)):
        if answer == files.make_content(other, generation):
            if other == number:
                return "holds what was written before: a write was lost, or an old copy read"
            return f"holds the data of {files.locate(other)}"
    expected = files.make_content(number, files.find_generation(number))
    wrong = compare_bytes(answer, expected)
    bits = list_bits(wrong.xor)
    return f"differs in {format_count(wrong.count, 'byte')}: {wrong.describe()} (bits {bits})"
