"""
Faults of silent data corruption, put below all of our code, and what must come of each.

The tests that inject them take what they expect from here, so that the page says what the
tests hold. Most faults are put under torch or the C library; where one is in what a library
chose to do, or in what the host computed, its own tests are named.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcverify.model import Verdict

CORE, EACH_CORE, HOST, NOBODY = "the core", "each core", "the host", "nobody"
RANK, EACH_RANK, CPU_PART = "the rank", "each rank", "the CPU"
MEMORY, DISK = "the memory", "the disk"

SDC = "tests/checks/sdc/test_injections.py"
PRODUCT = f"{SDC}::test_a_fault_under_a_product_is_told_as_the_table_says"
COMPARISON = f"{SDC}::test_a_fault_under_a_comparison_is_told_as_the_table_says"
COPY = f"{SDC}::test_a_fault_under_a_copy_is_told_as_the_table_says"
DTYPES, VOTE = "tests/checks/common/test_dtypes.py", "tests/checks/common/test_vote.py"
PREPARE, COPIES = "tests/checks/sdc/test_prepare.py", "tests/checks/sdc/test_copies.py"
HOST_MEMORY, HOST_TESTS = "host_memory", "tests/checks/host_memory/test_host_memory.py"
DISKS = "tests/checks/storage/test_faults.py"
MARCH = "tests/checks/common/test_march.py"
ALLREDUCE, ALLREDUCE_TESTS = "allreduce", "tests/checks/test_allreduce.py"
GRADIENTS = "tests/checks/training/test_gradient_sums.py"
ACCURACY = "tests/checks/training/test_accuracy.py"


PATTERN = "fp32 operands that end in 0101..., of 16 bits, are multiplied wrongly"


@dataclass(frozen=True, slots=True)
class Injection:
    """A fault, the verdict and the accused part that it must lead to, and who holds that."""

    fault: str
    check: str
    verdict: Verdict
    part: str
    tests: tuple[str, ...]
    note: str = ""
    """If nothing is found, why."""


def _name(path: str, *tests: str) -> tuple[str, ...]:
    return tuple(f"{path}::test_{test}" for test in tests)


def _list_products() -> list[Injection]:
    found = {
        "two rows change places, once": "",
        "two neighbours change places, once": "",
        "the product is all NaN, once": "",
        "the product is all zeros, once": "",
        "the output is what it was, once": "",
        "all products are zeros": "",
        "nothing is written from the 13th product on": "",
        "one element is never written": "",
        "a bit is stuck in one lane of 16": "",
        "the last 16 of k are left out": "",
        "a bit flips in one of 100 products": "",
        "results above 2^23.5 are off by one": "",
        "results above 2^25 are off by one": "",
        "results above 2^40 are off by one": "in fp32 only sparse products are that large",
        "results above 2^60 are off by one": "the same",
        "results above 2^100 are off by one": "the same",
        "infinity is the largest number": "",
        "subnormal results are flushed": "",
        "subnormal operands are flushed": "",
        "the multiplier loses the lowest bit of its operands": "",
        "results are cut off, not rounded": "",
        "full significands are off by one": "",
        "int8 operands that are 01010101 are multiplied wrongly": "",
    }
    return [
        Injection(fault, "sdc", Verdict.FAIL, CORE, (f"{PRODUCT}[{fault}]",), note)
        for fault, note in found.items()
    ]


def _list_shared() -> list[Injection]:
    alike = "ERROR `inexact` where cores enough agree on the same wrong bits: a library may do it"
    faults = (
        "every core: all products are zeros",
        "every core: one element is never written",
        "every core: results above 2^40 are off by one",
        "every core: subnormal results are flushed",
        "every core: the multiplier loses the lowest bit of its operands",
        "every core: results are cut off, not rounded",
    )
    return [
        Injection(fault, "sdc", Verdict.FAIL, EACH_CORE, (f"{PRODUCT}[{fault}]",), alike)
        for fault in faults
    ]


def _list_sums(check: str, test: str, faults: tuple[str, ...]) -> list[Injection]:
    return [Injection(fault, check, Verdict.FAIL, RANK, (test,)) for fault in faults]


def _list_disks(*faults: str) -> list[Injection]:
    test = _name(DISKS, "a_disk_that_goes_wrong_fails_for_what_it_did")
    return [Injection(fault, "storage", Verdict.FAIL, DISK, test) for fault in faults]


def _compared(fault: str, verdict: Verdict, part: str = CORE, note: str = "") -> Injection:
    return Injection(fault, "sdc", verdict, part, (f"{COMPARISON}[{fault}]",), note)


def _copied(fault: str, note: str = "") -> Injection:
    return Injection(fault, "sdc", Verdict.FAIL, CORE, (f"{COPY}[{fault}]",), note)


INJECTIONS = (
    Injection(
        "each bit of an output flips once: 32 of fp32, 64 of fp64, 32 of int8, 16 of bf16",
        "sdc",
        Verdict.FAIL,
        CORE,
        _name(SDC, "each_bit_is_found_in_the_product_in_which_the_library_flips_it"),
    ),
    *_list_products(),
    Injection(
        "a bit flips in one of 1000 products",
        "sdc",
        Verdict.FAIL,
        CORE,
        _name(SDC, "a_fault_in_one_of_1000_products_is_found_once_there_are_as_many"),
        "`quick` makes fewer; its coverage says which rate the time excludes",
    ),
    Injection(
        "the first product after a pause of 2 ms is wrong",
        "sdc",
        Verdict.FAIL,
        CORE,
        _name(SDC, "a_product_that_is_wrong_after_a_pause_is_found_under_load_steps"),
        "found under load steps",
    ),
    Injection(
        "the first random product of a core is wrong",
        "sdc",
        Verdict.FAIL,
        CORE,
        _name(SDC, "a_first_random_product_that_is_wrong_is_told_with_the_right_one_as_expected"),
        "each is made twice; said to be intermittent, with the right value as expected",
    ),
    Injection(
        PATTERN,
        "sdc",
        Verdict.WARN,
        EACH_CORE,
        (f"{PRODUCT}[{PATTERN}]",),
        "`dissent`: only random products have such operands in A often enough, and nobody "
        "knows those to the last bit; an equal GPU is outvoted",
    ),
    *_list_shared(),
    _compared("the comparison is blind in a lane", Verdict.ERROR),
    Injection(
        "the comparison is blind, and the products are wrong",
        "sdc",
        Verdict.ERROR,
        CORE,
        _name(SDC, "a_core_that_multiplies_wrongly_and_compares_blindly_is_accused_of_what_shows"),
        "FAIL if the core makes the first products, which the host proves",
    ),
    _compared("two to five wrong words count as none", Verdict.ERROR),
    _compared(
        "right words are counted as wrong",
        Verdict.FAIL,
        note="said to be right when read a second time",
    ),
    _compared("loads for the comparison hold a bit at one", Verdict.ERROR),
    Injection(
        "the comparison is blind for some products, all of them wrong",
        "sdc",
        Verdict.ERROR,
        CORE,
        _name(
            SDC,
            "a_comparison_that_is_blind_while_a_canary_comes_is_found_out",
            "a_fault_between_two_canaries_to_which_the_comparison_is_blind_passes",
        ),
        "not found if both faults come and go between two canaries, 256 products apart",
    ),
    Injection(
        "the host gets a sum of its proof wrong, with new operands or without a digest",
        "sdc",
        Verdict.ERROR,
        HOST,
        _name(PREPARE, "a_wrong_sum_in_a_proof_accuses_the_host_and_no_part"),
        "cause `checker`",
    ),
    Injection(
        "the host gets a digest wrong",
        "sdc",
        Verdict.ERROR,
        HOST,
        _name(
            PREPARE,
            "a_digest_that_the_host_gets_wrong_accuses_no_part",
            "a_host_that_contradicts_the_shipped_digest_is_not_trusted",
        ),
        "cause `checker`",
    ),
    Injection(
        "a first product is wrong, and made so that its digest is right",
        "sdc",
        Verdict.PASS,
        NOBODY,
        _name(SDC, "a_wrong_product_that_has_the_shipped_digest_is_found_by_its_proof_alone"),
        "no fault searches for such bits, and others hit a digest once in 2^64; `burnin` proves "
        "new operands without a digest",
    ),
    Injection(
        "oneDNN multiplies int8 as a CPU without VNNI",
        "sdc",
        Verdict.PASS,
        NOBODY,
        (
            *_name(DTYPES, "the_largest_int8_operands_are_exact_on_a_cpu_without_vnni"),
            *_name(VOTE, "what_no_other_core_reached_goes_with_the_plan_of_its_type_that_all_did"),
        ),
        "healthy: the operands suit it; what all cores get wrong alike accuses none of them",
    ),
    _copied("a copy is a byte short"),
    _copied("a copy is a byte too long"),
    _copied("a copy writes a cache line twice"),
    _copied("a copy writes 8 bytes 200 behind its end", "up to 4096 bytes away for certain"),
    _copied("a bit flips in one of 10 copies"),
    _copied("a bit flips in one of 200 copies", "`quick` may make fewer"),
    _copied("two words change places in one of 20 copies", "the same"),
    Injection(
        "the memory that copies of a CPU come from changes",
        "sdc",
        Verdict.FAIL,
        MEMORY,
        _name(COPIES, "a_source_that_rots_fails_and_accuses_the_memory_once"),
    ),
    Injection(
        "a bit of memory is stuck at 0, or at 1",
        HOST_MEMORY,
        Verdict.FAIL,
        MEMORY,
        (
            *_name(HOST_TESTS, "a_stuck_bit_is_found_with_its_place"),
            *_name(MARCH, "every_stuck_bit_of_a_word_is_found"),
        ),
        "by `gpu_memory` as well, and so are the next three",
    ),
    Injection(
        "a line of the address is stuck",
        HOST_MEMORY,
        Verdict.FAIL,
        MEMORY,
        _name(MARCH, "a_line_of_the_address_that_is_stuck_is_found"),
    ),
    Injection(
        "a cell of memory changes another one, before it or behind it",
        HOST_MEMORY,
        Verdict.FAIL,
        MEMORY,
        (
            *_name(MARCH, "a_cell_that_another_one_changes_is_found_in_one_pass"),
            *_name(HOST_TESTS, "a_cell_that_another_one_of_its_region_changes_is_found"),
        ),
        "not found if the write that changes the other cell then overwrites it",
    ),
    Injection(
        "a cell of memory loses its bit in a pause",
        HOST_MEMORY,
        Verdict.FAIL,
        MEMORY,
        (
            *_name(MARCH, "a_cell_that_loses_its_charge_in_the_pause_is_found"),
            *_name(HOST_TESTS, "memory_that_forgets_in_a_pause_is_found"),
        ),
        "as long as the pause: 1 s in `quick`, 60 s in `burnin`",
    ),
    Injection(
        "memory gives an old word within microseconds of a write",
        HOST_MEMORY,
        Verdict.PASS,
        NOBODY,
        (),
        "what is read so soon comes from a cache",
    ),
    *_list_disks(
        "a first write of 1 MiB is lost, misdirected, torn, changed or exchanged",
        "an overwrite, of 4 KiB or 1 MiB, is lost, misdirected, torn, changed or exchanged",
        "a read gives old data, or changed ones",
        "a block of a journal, or its end, is lost, misdirected, torn, changed or old",
        "a small file is lost, cut, torn, changed, old or another one",
    ),
    *_list_sums(
        ALLREDUCE,
        f"{ALLREDUCE_TESTS}::test_whatever_one_rank_gets_wrong_fails_and_names_that_rank_alone",
        (
            "a bit of a sum flips, once",
            "a sum is that of the step before",
            "a sum has the peer's share of the step before",
            "a sum is without a share, or has one twice",
            "a sum is a share alone",
            "all words lose their lowest bit, or their 8 lowest",
            "all words are one place further on",
            "a chunk comes from 97 x 32 words further on",
            "two halves change places",
        ),
    ),
    Injection(
        "all ranks: all words lose their 8 lowest bits",
        ALLREDUCE,
        Verdict.FAIL,
        EACH_RANK,
        _name(ALLREDUCE_TESTS, "bits_that_all_ranks_lose_are_found_on_all"),
    ),
    Injection(
        "a share is lost, or comes twice: all ranks get the same wrong sum",
        ALLREDUCE,
        Verdict.FAIL,
        EACH_RANK,
        _name(ALLREDUCE_TESTS, "a_share_that_all_ranks_miss_is_named"),
        "the text says whose share",
    ),
    *_list_sums(
        "training",
        f"{GRADIENTS}::test_whatever_ranks_get_wrong_fails_and_names_them_alone",
        (
            "a bit of a sum of gradients flips, once",
            "a sum of gradients is that of the step before",
            "a sum of gradients has the peer's share of the step before",
            "a sum of gradients is without a share, or has one twice",
            "all sums of gradients lose their lowest bit, or their 8 lowest",
            "all sums of gradients are one place further on",
        ),
    ),
    Injection(
        "all ranks: all sums of gradients lose their 8 lowest bits",
        "training",
        Verdict.FAIL,
        EACH_RANK,
        _name(GRADIENTS, "bits_that_all_ranks_lose_are_found_on_all"),
    ),
    Injection(
        "all ranks: an activation is off by a thousandth, always",
        "training",
        Verdict.WARN,
        CPU_PART,
        _name(ACCURACY, "an_activation_that_is_always_wrong_on_all_ranks_warns"),
        "by the same step in fp64; on GPUs not found if all err alike, else outvoted: bf16 "
        "rounds as much away, and no digest ships, since libraries choose the order of sums by "
        "model, cores and caches",
    ),
    Injection(
        "one rank: an activation is off by a thousandth, always",
        "training",
        Verdict.WARN,
        CPU_PART,
        _name(ACCURACY, "a_rank_whose_activations_are_always_wrong_is_contradicted"),
        "no core is named: ranks of a CPU are not pinned; a GPU is outvoted",
    ),
    Injection(
        "an activation is off in its last bit, once",
        "training",
        Verdict.WARN,
        CPU_PART,
        _name(ACCURACY, "an_activation_that_is_off_in_its_last_bit_once_warns"),
        "FAIL on a GPU",
    ),
)


def find_injection(check: str, fault: str) -> Injection:
    """Find the row of a *fault*."""
    return next(row for row in INJECTIONS if (row.check, row.fault) == (check, fault))
