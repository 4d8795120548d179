"""What kind of work a GPU row does: by the op that launched it first, by the kernel's name second.

A name says what code ran, not why, so an op that is known decides, except for what its name shows to be a
helper: copies, fills, the sum of a split product. Names come demangled (nsys writes `<unnamed>::`, `(int)4`
and `[lambda() (instance 1)]` where Kineto writes `(anonymous namespace)::`, `4` and `{lambda()#1}`), mangled
(`_ZN2ck...`), or cut at the first `<` or `(` (nixnan).
"""

from __future__ import annotations

import re
from functools import cache, lru_cache

from lab.perfmodel.calls import op_of
from lab.perfmodel.communication import OPS as COMMUNICATION_OPS
from lab.perfmodel.communication import communication

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
    (
        "gemm",
        r"^triton_tem_\w*(mm|matmul)|fused_moe_kernel|moe_gemm|moe_stage\d|(^|[^a-z])fmoe_|wvSplitK|(^|[^a-z])LLMM1",
    ),
    ("attention", r"^triton_tem_\w*attention"),
    ("triton", r"^triton_"),
    ("scan", r"selective_scan|chunk_scan|chunk_state|state_passing|delta_rule|fused_recurrent|wkv\d"),
    # flashinfer is a namespace: norms, activations and samplers live there, too.
    ("attention", r"flashinfer::.*(Batch(Decode|Prefill|MLA)|Single(Decode|Prefill)|MergeState|cascade)"),
    ("attention", r"flash(?!infer)|fmha|attn|attention|_sdpa_|(^|[^a-z])m[hl]a_"),
    (
        "attention",
        r"_fwd_(grouped_)?kernel_stage\d|_bwd_kernel_dk?[qv]|compute_dot_do_o|convert_dq_to_16bits",
    ),
    ("splitk_reduce", r"split_?k_?reduce|reduce_?split_?k|execute_split_k_kernel|PostGSU"),
    ("elementwise", r"upsample_"),
    (
        "conv",
        r"conv(?!ert|ersion)|winograd|im2(d2)?col|col2im|(^|_)igemm_(fwd|bwd|wrw)|miopenSp3|[fbdw]prop|[dw]grad_",
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
    ("rng", r"(?<!up)(?<!down)sampling"),
    ("copy", r"(Append|concat_and_|reshape_and_|store_)\w*cache|set_\w*kv_buffer"),
    ("copy", r"direct_copy|CatArray|copy_kernel|_copy_|copy_device|transpose|permute|chunk_cat"),
    ("mask", r"masked_|(^|[^a-z])where|triu|tril(?!l)|bitwise_not"),
    (
        "index",
        r"(?<!with_)index|gather|scatter|embedding|krn_partial|compute_grad_weight|nonzero|(^|[^a-z])take_",
    ),
    ("index", r"sort|topk|bitonic|radix|moe_align|(_|::)routing|bitmatrix"),
    ("reduce", r"reduc|scan(?!n)|cumsum|cumprod|(^|[^a-z])(dot_kernel|asum|nrm2)|histogram|moe_sum"),
    ("elementwise", r"elementwise|pointwise|Functor|SubTensorOp|Op\dd?Tensor|op_generic_tensor"),
    ("elementwise", r"act_and_mul|swiglu|geglu"),
    ("elementwise", r"(^|[^a-z])(fill|add|mul|cast|silu|gelu|relu)_"),
]
_RETURNS = re.compile(r"^void\s+")


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the tables, compiled when a name first comes so far: all of them take 10 ms."""
    return re.compile(pattern, re.IGNORECASE)


@lru_cache(maxsize=1 << 16)
def kernel_class(name: str, op: str = "") -> str:
    """One of CLASSES for a kernel, and the op that launched it where that is known; `other` if neither tells.

    An op of several kinds of kernels (a mixture of experts) only decides where the name tells nothing.
    """
    by_name, by_op = _class_of_name(name), op_class(op)
    if by_op in ("", by_name) or by_name in ("comm", *_HELPERS):
        return by_op if by_name == "elementwise" and by_op in _LOOPS else by_name
    if by_name == "other" or by_op == "comm" or (by_op not in _LOOPS and op_of(op).model != "experts"):
        return by_op
    return by_name


@lru_cache(maxsize=1 << 16)
def _class_of_name(name: str) -> str:
    """The first row of the table that fits the kernel's name; `other` where none does."""
    bare = _RETURNS.sub("", name)
    kind = next((kind for kind, pattern in _TABLE if _compiled(pattern).search(bare)), "other")
    return "comm" if kind not in ("memcpy", "memset") and communication(bare) else kind


# Kernels that ops of every class launch beside their own.
_HELPERS = ("memcpy", "memset", "copy", "splitk_reduce", "elementwise")
# Ops whose kernels only loop: a name that says more is right.
_LOOPS = ("elementwise", "copy", "index", "mask", "reduce", "rng")
# Ops of other libraries by their names; the first match counts.
_OTHER_OPS = (
    ("norm", r"(layer|rms|group)_?norm"),
    ("attention", r"attn|attention|(^|_|:)m[hl]a(_|$)|fmha|::(varlen_)?fwd(_kvcache|_sparse)?$|::paged_"),
    ("rope", r"rotary|(^|_|:)rope(_|$)"),
    ("gemm", r"gemm|(^|_)b?mm(_|$)|matmul"),
    ("quant", r"quant"),
    ("elementwise", r"(silu|gelu|relu|swiglu)\w*$"),
    ("copy", r"(reshape|concat)_and_cache"),
)


@lru_cache(maxsize=1 << 16)
def op_class(op: str) -> str:
    """The class of work that an op is for; "" for an op that does not tell."""
    if op.startswith(COMMUNICATION_OPS):
        return "comm"
    if kind := op_of(op).kind:
        return kind
    if op.startswith("aten::"):
        return ""
    if "::" not in op and not op.startswith("FlashAttn"):  # ranges, and kernels of torch.compile
        return ""
    return next((kind for kind, pattern in _OTHER_OPS if _compiled(pattern).search(op)), "")


def class_of_launch(name: str, op: str, kind: str) -> str:
    """The class of a kernel, of a copy or fill (a class of its own), or of a CPU op that stands for one."""
    if kind == "cpu_op":
        return op_class(op) or "elementwise"
    return kernel_class(name, op) if kind == "kernel" else kind


def is_matmul(name: str) -> bool:
    """Whether the kernel multiplies matrices (or a matrix and a vector); not attention, conv or split-K sums.

    bitsandbytes' kgemm_4bit multiplies and dequantizes in one: its class is `quant`, and it counts here.
    """
    return kernel_class(name) in ("gemm", "gemv") or "kgemm_4bit" in name


# Ops that call others, which may turn out to be views.
_COMPOSITES = ("linear", "matmul", "scaled_dot_product_attention", "layer_norm", "rms_norm", "softmax")


def moves_no_data(op: str) -> bool:
    """Whether a CPU op moves no data: views and allocations, and ops outside `aten` except collectives."""
    return not communicates(op) and (not op.startswith("aten::") or op_of(op).model == "nothing")


def communicates(op: str) -> bool:
    """Whether a CPU op starts a collective or waits for one."""
    return op.startswith("c10d::") or op == "_c10d_functional::wait_tensor"


def works_itself(op: str) -> bool:
    """Whether a CPU op counts as a launch while the ops that it calls do not: a product copies its bias."""
    space, _, name = op.partition("::")
    strong = op_class(op) in ("gemm", "gemv", "conv", "attention", "softmax", "norm")
    return space == "aten" and strong and name.rstrip("_") not in _COMPOSITES


@lru_cache(maxsize=1 << 16)
def gemm_library(name: str) -> str:
    """The library behind a GEMM kernel, "" for any other kernel."""
    if _compiled(_NOT_GEMM).search(name):
        return ""
    return next((library for library, pattern in _LIBRARIES if _compiled(pattern).search(name)), "")
