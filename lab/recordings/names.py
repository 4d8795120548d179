"""What a kernel is, by its name: its class, the library behind a GEMM, and a name short enough to read.

One table for every room and both collectors. Names come demangled (nsys writes `<unnamed>::`, `(int)4` and
`[lambda() (instance 1)]` where Kineto writes `(anonymous namespace)::`, `4` and `{lambda()#1}`), mangled
(`_ZN2ck...`), or cut at the first `<` or `(` (nixnan). A name says what code ran, not why: where the op that
launched it is known, ask the op first.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from lab.recordings.communication import communication

CLASSES = (
    "gemm",
    "gemv",
    "splitk_reduce",
    "attention",
    "conv",
    "scan",
    "softmax",
    "norm",
    "optimizer",
    "triton",
    "comm",
    "copy",
    "index",
    "mask",
    "reduce",
    "rope",
    "quant",
    "rng",
    "memset",
    "memcpy",
    "elementwise",
    "other",
)

# First match counts. Tensile's names serve both rocBLAS and hipBLASLt; only the latter passes UserArgs.
_LIBRARIES = [
    ("hipBLASLt", r"(?-i:(^|_)Cijk_.*UserArgs)"),
    ("Tensile", r"(?-i:(^|_)Cijk_)"),
    ("nvjet", r"(?-i:nvjet)"),
    ("cutlass", r"cutlass.*gemm|^cutlass|cutlass_\d+_"),
    ("Triton", r"^triton_.*(mm|gemm|matmul)|^(_?matmul|_?gemm)_kernel"),
    ("CK", r"(^|[^a-z])ck(_tile)?::.*gemm|_ZN2ck.*gemm"),
    ("cuBLAS", r"(^|_|::)(s|d|h|c|z|i|b|g)?gemm|gemv|_s\d+gemm_|hmma.*gemm"),
]
_NOT_GEMM = r"flash|fmha|attn|attention|splitKreduce|execute_split_k"

# First match counts; a class may come twice. Reasons for the order:
# copies before all (names of copies contain other words), then communication, by a table of its own;
# attention before split-K (flash_fwd_splitkv) and GEMM (fmha_cutlassF), split-K before GEMM
# (execute_split_k_kernel only adds up, while nvjet's splitK multiplies), conv before GEMM (implicit GEMM),
# inductor's fused kernels before the ops that their names list, optimizer before norm (LpNormFunctor).
_TABLE = [
    (
        "memcpy",
        r"^(\[?CUDA )?memcpy|^__amd_rocclr_copy(Buffer|Image)|^Copy(Host|Device)To|^MEMORY_COPY|^hip ?memcpy",
    ),
    ("memset", r"^(CUDA |\[CUDA )?memset|^__amd_rocclr_fill(Buffer|Image)|^FillBuffer|^hip ?memset"),
    ("gemm", r"^triton_tem_\w*(mm|matmul)|fused_moe_kernel|moe_gemm|(^|[^a-z])fmoe_"),
    ("attention", r"^triton_tem_\w*attention"),
    ("triton", r"^triton_"),
    ("scan", r"selective_scan|chunk_scan|chunk_state|state_passing"),
    # flashinfer is a namespace: norms, activations and samplers live there, too.
    ("attention", r"flashinfer::.*(Batch(Decode|Prefill|MLA)|Single(Decode|Prefill)|MergeState|cascade)"),
    ("attention", r"flash(?!infer)|fmha|attn|attention|_sdpa_|(^|[^a-z])m[hl]a_"),
    ("attention", r"_fwd_(grouped_)?kernel_stage\d|compute_dot_do_o|convert_dq_to_16bits"),
    ("splitk_reduce", r"split_?k_?reduce|reduce_?split_?k|execute_split_k_kernel|PostGSU"),
    ("elementwise", r"upsample_"),
    (
        "conv",
        r"conv(?!ert|ersion)|winograd|im2col|col2im|(^|_)igemm_(fwd|bwd|wrw)|miopenSp3|[fbdw]prop|[dw]grad_",
    ),
    ("conv", r"implicit_(con|gemm)|bwd_weight|bwd_data"),
    ("quant", r"kgemm_4bit"),
    ("gemv", r"gemv|gevm"),
    ("gemm", r"gemm|(^|_)Cijk_|nvjet|cutlass::|^cutlass|wgmma|matmul|(^|_)mm_kernel|marlin"),
    ("optimizer", r"FusedAdam|(^|[^a-z])adam|_adam|fused_?sgd|kOptimizer|kPreconditionOptimizer|(^|_)lamb_"),
    ("copy", r"multi_tensor_apply\w*<.*CopyFunctor"),
    ("optimizer", r"multi_tensor_apply"),
    ("softmax", r"softmax"),
    ("norm", r"(layer|rms|batch|group|instance)_?norm|RowwiseMoments|GammaBeta|(^|[^a-z])ln_(fwd|bwd)"),
    ("norm", r"(^|[^a-z])bn_(fw|bw)|welford|batch_norm"),
    ("rope", r"rotary|(^|[^a-z])rope([^a-z]|$)"),
    ("quant", r"quantiz|dequant|(^|_)quant(_|$)|_fp8_quant|(?<!e)int8_?(mm|vector)"),
    ("rng", r"distribution_|philox|curand|dropout|bernoulli|(^|[^a-z])random_|normal_and_transform"),
    ("copy", r"(Append|concat_and_|reshape_and_)\w*cache"),
    ("copy", r"direct_copy|CatArray|copy_kernel|_copy_|copy_device|transpose|permute|chunk_cat"),
    ("mask", r"masked_|(^|[^a-z])where|triu|tril(?!l)|bitwise_not"),
    (
        "index",
        r"(?<!with_)index|gather|scatter|embedding|krn_partial|compute_grad_weight|nonzero|(^|[^a-z])take_",
    ),
    ("index", r"sort|topk|bitonic|radix"),
    ("reduce", r"reduc|scan(?!n)|cumsum|cumprod|(^|[^a-z])(dot_kernel|asum|nrm2)|histogram"),
    ("elementwise", r"elementwise|pointwise|Functor|SubTensorOp|Op\dd?Tensor|op_generic_tensor|act_and_mul"),
    ("elementwise", r"(^|[^a-z])(fill|add|mul|cast|silu|gelu|relu)_"),
]
_RETURNS = re.compile(r"^void\s+")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the tables, compiled when a name first comes so far: all of them take 10 ms."""
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=1 << 16)
def kernel_class(name: str) -> str:
    """One of CLASSES: the first row of the table that fits the kernel's name; `other` where none does."""
    bare = _RETURNS.sub("", name)
    kind = next((kind for kind, pattern in _TABLE if _compiled(pattern).search(bare)), "other")
    return "comm" if kind not in ("memcpy", "memset") and communication(bare) else kind


def is_matmul(name: str) -> bool:
    """Whether the kernel multiplies matrices (or a matrix and a vector); not attention, conv or split-K sums.

    bitsandbytes' kgemm_4bit multiplies and dequantizes in one: its class is `quant`, and it counts here.
    """
    return kernel_class(name) in ("gemm", "gemv") or "kgemm_4bit" in name


@lru_cache(maxsize=1 << 16)
def gemm_library(name: str) -> str:
    """The library behind a GEMM kernel, "" for any other kernel."""
    if _compiled(_NOT_GEMM).search(name):
        return ""
    return next((library for library, pattern in _LIBRARIES if _compiled(pattern).search(name)), "")


# Functions whose names only say how they loop; their template arguments say what they do.
_GENERIC = re.compile(
    r"elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel|^[Kk]ernel2?$|device_kernel|with_index|for_each"
)
_WRAPPERS = {
    "AUnaryFunctor",
    "BUnaryFunctor",
    "BinaryFunctor",
    "ReduceOp",
    "PointwiseOp",
    "OffsetCalculator",
    "TrivialOffsetCalculator",
    "TensorListMetadata",
    "TensorListScalarListMetadata",
    "gpu_kernel_impl",
    "gpu_kernel_impl_nocast",
}
_TELLING = re.compile(
    r"launch_\w+|[A-Za-z_]\w*(?:Functor|gemm|_kernel|_cuda|Impl|Ops?(?![a-z])|_functor)\w*", re.IGNORECASE
)
_PLAIN = re.compile(r"^(\[?(CUDA )?(memcpy|memset)|Copy(Host|Device)To|MEMORY_COPY_)", re.IGNORECASE)
_NOISE = re.compile(r"<unnamed>::|\(anonymous namespace\)::|\{anonymous\}::")
_OPENING, _CLOSING = "<([{", ">)]}"
_DIGITS = re.compile(r"\d+")
_NO_TENSORS = re.compile(r"(?:,\s*\[\])+\s*\]$")


def short_dims(dims: str) -> str:
    """Shapes for a sentence: without those of the last arguments that are no tensors, which are `[]`."""
    return _NO_TENSORS.sub("]", dims)


@lru_cache(maxsize=1 << 16)
def short_name(name: str) -> str:
    """A name for a table or a figure: the function without namespaces, types and parameters.

    Functions that only loop keep the functor that says what they do
    (`vectorized_elementwise_kernel<MulFunctor>`, `Kernel2<cutlass_80_simt_sgemm_128x256_8x4_nt_align1>`),
    and both collectors' spellings give the same. Kernels that differ in types only share a short name: a
    label, not a key.
    """
    if _PLAIN.search(name):
        return name
    if name.startswith("_Z"):
        return _last_of_mangled(name)
    function = _last_word(_NOISE.sub("", name).strip())
    head = re.split(r"[<(]", function, maxsplit=1)[0]
    if not head:
        return name
    parts = head.split("::")
    base = "::".join(parts[-2:]) if parts[-1].lower() == "kernel" else parts[-1]
    if not _GENERIC.search(parts[-1]):
        return base or name
    functor = next((word for word in _TELLING.findall(function[len(head) :]) if word not in _WRAPPERS), "")
    return f"{base}<{functor}>" if functor else base


def _last_word(name: str) -> str:
    """What follows the last blank outside brackets: the function, without its return type."""
    depth, start = 0, 0
    for index, char in enumerate(name):
        if char in _OPENING:
            depth += 1
        elif char in _CLOSING:
            depth = max(0, depth - 1)
        elif char == " " and depth == 0:
            start = index + 1
    return name[start:]


def _last_of_mangled(name: str) -> str:
    """The innermost name of an Itanium-mangled function, a series of lengths and identifiers."""
    index, innermost = (3 if name.startswith("_ZN") else 2), ""
    while match := _DIGITS.match(name, index):
        index = match.end() + int(match.group())
        innermost = name[match.end() : index] or innermost
    return innermost or name
