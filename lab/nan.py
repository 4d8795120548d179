"""Watch a model of your own: who makes the first NaN or infinity?

    from lab import nan
    with nan.watch(model) as w:
        model(inputs)
    print(w.first and w.first.place)          # in model.layers.2.self_attn, after v_proj, before o_proj

Nothing of the watch stays on the model after the block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.rooms.nan.watch.watch import Watch


def watch(model: Any, **options: Any) -> Watch:
    """A watch over `model`, a torch.nn.Module; for the options see `lab.rooms.nan.watch.watch.Watch`.

    on_bad="raise" stops at the end of the first forward that made a NaN or an infinity; a function given as
    on_bad is called instead.
    """
    from lab.errors import needs

    with needs("workload"):
        from lab.rooms.nan.watch.watch import Watch
    return Watch(model, **options)
