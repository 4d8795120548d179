"""The class of a launch: by its kernel's name, or by its op if the name only says how the kernel loops."""

from __future__ import annotations

from lab.recordings import communication
from lab.recordings.names import kernel_class

# Class -> names of ops, without namespace and trailing underscore. For CPU ops this is the only source.
_OPS = {
    "gemm": (
        "mm addmm bmm baddbmm _int_mm _scaled_mm linear matmul addbmm _addmm_activation mkldnn_linear "
        "_linalg_matmul"
    ),
    "gemv": "mv addmv dot vdot",
    "conv": (
        "convolution _convolution mkldnn_convolution cudnn_convolution miopen_convolution "
        "convolution_backward"
    ),
    "attention": (
        "scaled_dot_product_attention _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _flash_attention_forward _flash_attention_backward"
    ),
    "softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax",
    "norm": (
        "native_layer_norm native_layer_norm_backward native_group_norm native_batch_norm _fused_rms_norm "
        "cudnn_batch_norm miopen_batch_norm rms_norm layer_norm"
    ),
    "copy": "copy cat clone _to_copy contiguous repeat stack expand_copy constant_pad_nd",
    "index": (
        "index index_select embedding gather scatter index_put _index_put_impl index_add "
        "embedding_dense_backward scatter_add take nonzero sort topk"
    ),
    "mask": "where masked_fill triu tril bitwise_not logical_not masked_select",
    "reduce": (
        "sum mean max min amax amin argmax argmin any all cumsum prod norm linalg_vector_norm var std "
        "var_mean _local_scalar_dense"
    ),
    "rng": "normal uniform bernoulli random native_dropout multinomial exponential",
}
CLASS_OF_OP = {name: kind for kind, names in _OPS.items() for name in names.split()}
# A kernel of these classes only says how it loops; the op knows better.
VAGUE = ("elementwise", "other")


def class_of_op(op: str) -> str:
    """One of lab.recordings.names' classes for an op; elementwise if nothing else is known."""
    if op.startswith(communication.OPS):
        return "comm"
    return CLASS_OF_OP.get(op.partition("::")[2].rstrip("_"), "elementwise")


def class_of_launch(name: str, op: str, kind: str) -> str:
    """The class of a CPU op or of a kernel; a copy or fill is a class of its own."""
    if kind == "cpu_op":
        return class_of_op(op)
    return class_of(name, op) if kind == "kernel" else kind


def class_of(kernel: str, op: str) -> str:
    """The class of a kernel; op is "" if not known."""
    found = kernel_class(kernel)
    if found not in VAGUE or not op:
        return found
    by_op = CLASS_OF_OP.get(op.partition("::")[2].rstrip("_"))
    # A GEMM op may also fill or copy; those launches are not its GEMM.
    return by_op if by_op and by_op not in ("gemm", "gemv", "conv", "attention") else found


# CPU ops that move no data: views, allocations, queries; and composites that may turn out to be one of them.
_NO_WORK = (
    "view _unsafe_view as_strided _reshape_alias reshape empty empty_like empty_strided detach alias expand "
    "expand_as permute transpose swapaxes t T numpy_T mT select slice narrow unsqueeze squeeze split "
    "split_with_sizes chunk unbind unflatten flatten unfold resize set item is_nonzero lift_fresh lift "
    "diagonal result_type can_cast resolve_conj resolve_neg to contiguous type_as dropout size stride dim "
    "numel movedim view_as broadcast_tensors broadcast_to atleast_1d _has_compatible_shallow_copy_type "
    "_assert_async conj is_same_size record_stream new_empty"
)
NO_WORK = frozenset(_NO_WORK.split())
# CPU ops that work themselves, whatever they call on the way (a GEMM copies its bias first).
OWN_WORK = frozenset(
    name
    for kind in ("gemm", "gemv", "conv", "attention", "softmax", "norm")
    for name in _OPS[kind].split()
    if name not in ("linear", "matmul", "scaled_dot_product_attention", "layer_norm", "rms_norm")
)


def moves_no_data(op: str) -> bool:
    """Whether a CPU op moves no data: views and allocations, and ops outside `aten` except collectives."""
    space, _, name = op.partition("::")
    return not communicates(op) and (space != "aten" or name.rstrip("_") in NO_WORK)


def communicates(op: str) -> bool:
    """Whether a CPU op starts a collective or waits for one."""
    return op.startswith("c10d::") or op == "_c10d_functional::wait_tensor"


def works_itself(op: str) -> bool:
    """Whether a CPU op counts as a launch while the ops it calls do not."""
    space, _, name = op.partition("::")
    return space == "aten" and name.rstrip("_") in OWN_WORK
