"""Known sources of differences, as data: what an operator does in no fixed order, and the switch for it.

Measured on one H200 with torch 2.11 where it says so; else from torch's documentation of
`use_deterministic_algorithms`.
"""

from __future__ import annotations

import re
from typing import NamedTuple

DETERMINISTIC = "torch.use_deterministic_algorithms(True)"


class Source(NamedTuple):
    """`ops`: regular expression on the operator's name without its library, or the name of an event."""

    ops: str
    reason: str
    switch: str


SOURCES = (
    Source(
        r"(bernoulli|native_dropout|_fused_dropout|rand|normal|uniform|multinomial|exponential|poisson|rrelu)\w*",
        "it draws random numbers",
        "seed every generator in every process: torch.manual_seed, numpy.random.seed, random.seed",
    ),
    Source(
        r"(index_add|scatter_add|scatter_reduce|put_|histc)",
        "atomic additions, in the order in which threads arrive (H200: 20 of 20 repeats differ)",
        DETERMINISTIC,
    ),
    Source(
        r"(index_put|_index_put_impl|embedding_dense_backward|_embedding_bag)",
        "additions to the same row; sorted where accumulate is asked for, else atomic",
        DETERMINISTIC,
    ),
    Source(r"bincount", "weights are added by atomics", "no deterministic form: sort, then segment_reduce"),
    Source(
        r"_scaled_dot_product_(flash|efficient|cudnn|fused)\w*_backward|_flash_attention_backward"
        r"|_efficient_attention_backward|flash_attn\w*bwd",
        "the gradient of the queries is added by atomics over blocks of keys (H200: 20 of 20 repeats differ)",
        f"{DETERMINISTIC} without warn_only, or torch.nn.attention.sdpa_kernel(SDPBackend.MATH)",
    ),
    Source(
        r"(cumsum|cumprod|logcumsumexp)",
        "a scan that looks back at blocks in the order in which they end (H200: 20 of 20 repeats differ)",
        DETERMINISTIC,
    ),
    Source(
        r"(upsample\w*_backward|grid_sampler\w*_backward|\w*interpolate\w*backward)",
        "atomic additions to the input's gradient",
        f"{DETERMINISTIC} (grid_sample has no deterministic backward)",
    ),
    Source(
        r"((reflection|replication)_pad\dd_backward|\w*adaptive\w*pool\w*_backward|\w*avg_pool3d_backward"
        r"|max_pool3d\w*_backward|fractional_max_pool\w*_backward|max_unpool\w*|nll_loss2d\w*|ctc_loss\w*|_ctc\w*"
        r"|median|kthvalue)",
        "atomic additions, or no fixed choice among equals, on GPUs",
        DETERMINISTIC,
    ),
    Source(
        r"(convolution|cudnn_convolution|miopen_convolution|_convolution)\w*",
        "the library times its algorithms and takes the fastest of the moment; some add by atomics",
        "torch.backends.cudnn.benchmark = False, torch.backends.cudnn.deterministic = True",
    ),
    Source(
        r"(mm|addmm|bmm|baddbmm|matmul|linear|mv|addmv|_scaled_mm|dot|einsum)",
        "split-K sums whose parts depend on the stream's workspace, or an algorithm chosen by timing",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8; on a CPU OMP_NUM_THREADS=1",
    ),
    Source(
        r"(allreduce|all_reduce|reduce_scatter|_reduce_scatter_base|reduce)\w*",
        "the order of a sum over ranks follows algorithm, protocol and topology",
        "NCCL_ALGO=Ring NCCL_PROTO=Simple, and the same placement of ranks",
    ),
    Source(
        r"(allgather|all_gather|_allgather_base|broadcast|alltoall|all_to_all)\w*",
        "it only copies: differing outputs come from another rank's input, or from a fault",
        "see the other ranks' inputs; NCCL_P2P_DISABLE=1 takes another way",
    ),
    Source(
        r"(sum|mean|var|std|norm|linalg_vector_norm|native_layer_norm\w*|native_batch_norm\w*|native_group_norm\w*"
        r"|_foreach_norm|prod|softmax|_softmax\w*|_log_softmax\w*|logsumexp)",
        "the parts of a sum follow the number of threads",
        "OMP_NUM_THREADS=1 on a CPU; on a GPU this repeats: suspect what is beneath it",
    ),
    Source(
        r"(triton|inductor|flash_attn|te_|transformer_engine|fla|xformers|apex)\w*",
        "a custom kernel, which no switch of torch covers",
        "the library's own switch (NVTE_ALLOW_NONDETERMINISTIC_ALGO=0, deterministic=True)",
    ),
)
_COMPILED = [(re.compile(rf"(?:{source.ops})_?"), source) for source in SOURCES]


def source_of(name: str) -> Source | None:
    """The known source behind `aten.index_add_.default` or `mylib.atomic_add.default`; None: none known."""
    library, _, operator = name.partition(".")
    word = operator.split(".")[0] if operator else library
    for pattern, source in _COMPILED:
        if pattern.fullmatch(word):
            return source
    return SOURCES[-1] if re.match(SOURCES[-1].ops, library) else None
