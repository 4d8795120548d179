"""torch.compile: from an Inductor kernel to the operators it fused, to lines of the model, to its graph.

Best rule first, and the one that answered stands beside the answer:

| rule | what it rests on |
|---|---|
| provenance | `inductor_provenance_tracking_node_mappings.json` (TORCH_COMPILE_DEBUG=1), and its graphs |
| comment | the comment above the kernel in Inductor's generated file (`output_code.py`) |
| name | the operators in the kernel's own name (their order there is alphabetical) |
| stack | the line of the generated file that launched it, from the recorded Python stack |
| none | nothing is known |

A kernel is (name, hash of its file): two graphs may both have a `triton_poi_fused_0`.
Files are looked for by hash, beside the trace and in folders that the user names: never at a path that a
recording holds.
"""

from lab.recordings.compiled.names import (
    InductorKernel,
    fused_ops,
    is_inductor,
    name_of_category,
    read_inductor,
)
from lab.recordings.compiled.provenance import Provenance, read_provenance

__all__ = [
    "InductorKernel",
    "Provenance",
    "fused_ops",
    "is_inductor",
    "name_of_category",
    "read_inductor",
    "read_provenance",
]
