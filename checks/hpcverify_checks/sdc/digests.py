"""
The digests of the correct products of the plans, for the shapes that suites use.

They and the certificates hold for every part, vendor and library: the operands are the
same everywhere. ``python -m tests.checks.sdc.universal`` prints them.
"""

from __future__ import annotations

from hpcverify_checks.common.exact import PlannedOperands


def find_shipped(made: PlannedOperands) -> tuple[int, int] | None:
    """Find the certificate of *made* and the digest of its product, if shipped."""
    key = made.name, made.shape.size, made.shape.depth
    return None if made.draw else SHIPPED_DIGESTS.get(key)


SHIPPED_DIGESTS: dict[tuple[str, int, int], tuple[int, int]] = {
    ("plain", 4096, 32768): (15354680, 0x0364_2B5A_AD58_2B11),
    ("bias+", 4096, 32768): (16379587, 0xDEB2_75A3_DDCE_EF66),
    ("bias-", 4096, 32768): (16395219, 0x402A_C415_60AB_140E),
    ("scaled", 4096, 32768): (15339970, 0xEB2E_F51E_0CD2_E24B),
    ("fine a", 4096, 32768): (16535352, 0x1913_61BE_B202_22AB),
    ("fine b", 4096, 32768): (16553927, 0x2B6F_1533_209B_7A97),
    ("double", 4096, 4096): (854568314216128, 0x28BA_2FB0_29DB_F56D),
    ("double+", 4096, 4096): (5356557108164310, 0x2588_8EC8_C20B_0DAB),
    ("double-", 4096, 4096): (5352638037641953, 0x06DC_63BA_33BB_9AB3),
    ("double scaled", 4096, 4096): (852348264505704, 0x2DF8_B187_468F_BCC8),
    ("fp8 a", 4096, 2048): (15499, 0x561C_4C9E_64B9_7748),
    ("fp8 b", 4096, 2048): (15430, 0xDA18_2DFD_4E8A_74F1),
    ("fp8 scaled", 4096, 2048): (15268, 0x97C7_227A_F4D4_01F0),
    ("fp8 bias", 4096, 2048): (15627, 0xC126_9B42_FD75_D304),
    ("int8", 4096, 32768): (36276741, 0xC2AC_C073_B85E_C82C),
    ("int8 a", 4096, 32768): (1028836, 0x8D93_0005_CF77_519D),
    ("int8 b", 4096, 32768): (1029253, 0xEA38_CFAF_F59F_0244),
    ("plain", 512, 2048): (16044165, 0x63EE_EFE9_41F9_B43B),
    ("bias+", 512, 2048): (16416829, 0xBF18_606A_5D70_AF14),
    ("bias-", 512, 2048): (16340898, 0x82C9_BC46_ED73_6B1F),
    ("scaled", 512, 2048): (16103044, 0xCC95_8FBB_92FC_37FB),
    ("fine a", 512, 2048): (16080994, 0xE3CC_9672_0D63_A014),
    ("fine b", 512, 2048): (15995249, 0x65F8_CCB0_2EB8_CB3D),
    ("double", 512, 2048): (442232714683180, 0x71B7_DA9E_A39C_0C72),
    ("double+", 512, 2048): (4939907057016444, 0x1923_EA1C_338F_3D54),
    ("double-", 512, 2048): (4940530365531665, 0xE51D_5D58_C047_8B47),
    ("double scaled", 512, 2048): (438265089091123, 0xB1DB_9E8D_B7CD_06EF),
    ("int8", 512, 2048): (2509053, 0x2995_E716_D40A_66A2),
    ("int8 a", 512, 2048): (70633, 0x007B_7325_2422_6E22),
    ("int8 b", 512, 2048): (71806, 0xCD0A_0291_4CC7_1382),
    ("narrow", 512, 128): (171, 0x3868_7C54_5E17_946E),
    ("narrow scaled", 512, 128): (170, 0x4E01_A337_527F_3209),
    ("narrow bias", 512, 128): (198, 0x2541_22E1_BE90_0DBD),
    ("sparse bf16", 4096, 32768): (0, 0xC8BE_EAB6_9754_4C0E),
    ("sparse half", 4096, 32768): (0, 0xD1E1_3986_1B48_BE25),
    ("sparse fp32", 4096, 32768): (0, 0x196B_95DB_4B45_F80F),
    ("sparse fp64", 4096, 4096): (0, 0x0951_9B10_75EC_2C12),
    ("sparse fp32 a", 4096, 32768): (0, 0x4E5C_DAB8_CCA6_C946),
    ("sparse fp64 a", 4096, 4096): (0, 0x5EB5_8DFF_207F_3A24),
    ("sparse fp8", 4096, 2048): (0, 0x1157_129F_C0BF_EA08),
    ("sparse fp32 subnormal", 512, 2048): (0, 0x2C66_1B59_0D4F_A610),
    ("sparse fp64", 512, 2048): (0, 0x3C5D_DE51_47E3_B05E),
    ("sparse fp32 subnormal a", 512, 2048): (0, 0x16A1_CAAD_FC43_AC23),
    ("sparse fp64 a", 512, 2048): (0, 0xDB87_DAB9_9A22_ECC1),
    ("sparse narrow", 512, 128): (0, 0xBE91_3439_384E_AFFA),
}
"""The certificate and the digest, by plan, size and depth."""
