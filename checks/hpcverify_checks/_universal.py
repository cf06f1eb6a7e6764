"""
The digests of the right products of the plans, for the shapes that suites use.

They hold for every part, vendor and library, and so do the certificates, since the
operands are the same everywhere. ``python -m tests.checks.universal`` prints them.
"""

from __future__ import annotations

from hpcverify_checks._exact import Operands

Key = tuple[str, int, int]
"""The plan, the size and the depth."""


def known(made: Operands) -> tuple[int, int] | None:
    """Give the certificate of *made* and the digest of its product, if shipped."""
    if made.draw:
        return None
    return UNIVERSAL.get((made.plan.name, made.shape.size, made.shape.depth))


UNIVERSAL: dict[Key, tuple[int, int]] = {
    ("plain", 4096, 32768): (15354680, 0x7E9D_A274_86F4_D230),
    ("bias+", 4096, 32768): (16379587, 0x1D08_FBC2_1BFE_D914),
    ("bias-", 4096, 32768): (16395219, 0xFDD5_234A_4249_007D),
    ("scaled", 4096, 32768): (15339970, 0x9AB0_57A2_EA49_FA00),
    ("fine a", 4096, 32768): (16535352, 0x33C6_1EA2_0B70_0C50),
    ("fine b", 4096, 32768): (16553927, 0x1B90_CE09_B5DA_7B20),
    ("double", 4096, 4096): (854568314216128, 0x9F2A_CD8C_5C4F_F240),
    ("double+", 4096, 4096): (5356557108164310, 0x56DA_012B_0131_6154),
    ("double-", 4096, 4096): (5352638037641953, 0x1C68_EDF7_5C80_3BEC),
    ("double scaled", 4096, 4096): (852348264505704, 0xFF7D_FD9D_C37D_1FC0),
    ("fp8 a", 4096, 2048): (15499, 0x4273_6B71_CD35_A000),
    ("fp8 b", 4096, 2048): (15430, 0xC462_0C43_DA49_2000),
    ("fp8 scaled", 4096, 2048): (15268, 0x6644_59BA_D0F7_8000),
    ("int8 a", 4096, 32768): (93177866, 0xC431_9668_3476_5E07),
    ("int8 b", 4096, 32768): (93228765, 0x2B73_8164_89A9_731D),
    ("plain", 512, 2048): (16044165, 0x9F2E_F10A_2AFB_C970),
    ("bias+", 512, 2048): (16416829, 0x4B96_EC7C_F108_893F),
    ("bias-", 512, 2048): (16340898, 0xC015_45A8_1609_B9A1),
    ("scaled", 512, 2048): (16103044, 0x772C_9F95_5BAD_1234),
    ("fine a", 512, 2048): (16080994, 0x02EC_64DB_A857_2AF8),
    ("fine b", 512, 2048): (15995249, 0xCFEE_0735_70D8_6E1C),
    ("double", 512, 2048): (442232714683180, 0x8601_3839_BDD4_84C0),
    ("double+", 512, 2048): (4939907057016444, 0x69F8_3E3E_DA7B_6877),
    ("double-", 512, 2048): (4940530365531665, 0x8777_C421_809D_8839),
    ("double scaled", 512, 2048): (438265089091123, 0xE6B7_82B8_5214_6280),
    ("int8 a", 512, 2048): (6551411, 0x9D08_CDB2_9347_E6A4),
    ("int8 b", 512, 2048): (6435606, 0xB59F_9C02_4CB4_4D6E),
    ("fp8 bias", 4096, 2048): (15627, 0x9CC6_BB1A_087F_1800),
    ("narrow", 512, 128): (171, 0xBF9B_AB17_8161_FAB6),
    ("narrow scaled", 512, 128): (170, 0x9275_4DE6_2D0F_321C),
    ("narrow bias", 512, 128): (198, 0x2D3A_2CBF_6E62_F618),
}
"""The certificate and the digest."""
