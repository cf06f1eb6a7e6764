"""
The digests of right answers, for the units that have the same answer on all machines.

``python -m tests.checks.cpu_units.universal`` prints them.
"""

from __future__ import annotations

SHIPPED_DRAWS = 6
"""How many data of each unit have a digest here."""

SHIPPED_DIGESTS: dict[tuple[str, str], str] = {
    ("long integers", "shipped 0"): "895ff4afd9e98640",
    ("long integers", "shipped 1"): "369f510451c77b1b",
    ("long integers", "shipped 2"): "e09e548558215c2d",
    ("long integers", "shipped 3"): "1f1cb41ab0da21eb",
    ("long integers", "shipped 4"): "d9a54fd3ecd1609e",
    ("long integers", "shipped 5"): "89ae1b0a274c285e",
    ("hashes", "shipped 0"): "02e6dd091affad7e",
    ("hashes", "shipped 1"): "4d2d4967454b728f",
    ("hashes", "shipped 2"): "2f586f5ff39bf27c",
    ("hashes", "shipped 3"): "c457481f24d88514",
    ("hashes", "shipped 4"): "a88e1a33a8833c87",
    ("hashes", "shipped 5"): "96d3053ad327f1a7",
    ("checksums", "shipped 0"): "fd2517bd697cb312",
    ("checksums", "shipped 1"): "e4ccda5616c5d156",
    ("checksums", "shipped 2"): "2de17aa99f134559",
    ("checksums", "shipped 3"): "fdf694590830ba2c",
    ("checksums", "shipped 4"): "3e8f61616f7e1617",
    ("checksums", "shipped 5"): "67dc999b4ef21fcb",
    ("copies", "shipped 0"): "acf79419a14e5b57",
    ("copies", "shipped 1"): "ccc9339029957167",
    ("copies", "shipped 2"): "d4e043ee805f5550",
    ("copies", "shipped 3"): "115ddc7f9afdfa39",
    ("copies", "shipped 4"): "4ed548d4e07d88b9",
    ("copies", "shipped 5"): "9934faf4b0870d06",
    ("AES", "shipped 0"): "a03502c13aa57497",
    ("AES", "shipped 1"): "06717d7cb5b8cf17",
    ("AES", "shipped 2"): "49879a17fa41b749",
    ("AES", "shipped 3"): "05af3fe934e149ab",
    ("AES", "shipped 4"): "a8d212c268c4a4c6",
    ("AES", "shipped 5"): "b620b69430c98655",
    ("vector integers", "shipped 0"): "e674fd83752eaf52",
    ("vector integers", "shipped 1"): "d95b25347b230410",
    ("vector integers", "shipped 2"): "78490175433c3f79",
    ("vector integers", "shipped 3"): "cd5ade4dd74cde92",
    ("vector integers", "shipped 4"): "255e5189971f25ff",
    ("vector integers", "shipped 5"): "5fd9857e1af66581",
    ("vector floats", "shipped 0"): "4d6b6dd349e38efd",
    ("vector floats", "shipped 1"): "04e60cdb0ce1a0ed",
    ("vector floats", "shipped 2"): "e876dd1640d44ef4",
    ("vector floats", "shipped 3"): "b0157f470224f9c4",
    ("vector floats", "shipped 4"): "592f745634748f4d",
    ("vector floats", "shipped 5"): "c726612a5871a4cc",
    ("quotients and roots", "shipped 0"): "c1a8120752312cc3",
    ("quotients and roots", "shipped 1"): "2374f3b950e9569a",
    ("quotients and roots", "shipped 2"): "8ae0534e1c08702a",
    ("quotients and roots", "shipped 3"): "8cb2c72315b9d9f0",
    ("quotients and roots", "shipped 4"): "5722144e10aaefe6",
    ("quotients and roots", "shipped 5"): "2efd7d1b7de15dff",
}
"""The digest of each answer, by unit and seed."""
