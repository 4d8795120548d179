"""What the recordings of `cases/recordings` hold by construction: rates, shares of the roof, classes.

Every command that prints one of these figures is held against this table in the tests of its own room.
"""

from __future__ import annotations

CASES = "cases/recordings"
# Recording, op, TFLOP/s over all kernels of a product, GFLOP of each of its 4 products.
PRODUCT_RATES = (
    ("flops_split_k", "aten::mm", 477.2, 8.59),
    ("flops_two_kernels", "aten::bmm", 214.7, 25.77),
)
# Recording of a board -> percent of its roof, None where it must not have one.
ROOF_PERCENTS = (
    ("h100_sxm", 60.4),
    ("h100_fp32", 73.4),
    ("h100_tf32", 69.5),
    ("gtx1080ti_fp16", 76.0),
    ("h100_nvl", 65.8),
    ("gb200", 61.1),
    ("mi250x_one_gcd", 71.8),
    ("quadro_p1000", None),  # the recording's P1000 has 4 of 5 multiprocessors
    ("t400", 66.1),
)
# Recording, class, its percent of GPU time.
CLASS_PERCENTS = (
    ("classes_cuda", "attention", 100 / 3),
    ("classes_rocm", "gemm", 200 / 3),
    ("classes_rocm", "attention", 100 / 3),
)
