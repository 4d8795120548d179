"""Watch a model of your own: who makes the first NaN or infinity?

    from lab import nan
    with nan.watch(model) as w:                           # inference
        model(inputs)
    print(w.status, w.first and w.first.place) # bad in model.layers.2.self_attn, after v_proj

    with nan.guard(model, optimizer, scaler) as g:        # training, from the batch to the updated weights
        for batch in batches: ...
    print(g.sentence()) # step 3: first bad number in backward of blocks.1.norm ...

Nothing is left on the model, the optimizer or any tensor, inside the block or after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.rooms.nan.watch.guard.guard import Guard
    from lab.rooms.nan.watch.watch import Watch


def watch(model: Any, **options: Any) -> Watch:
    """Make a watch over `model`, a torch.nn.Module; for the options see `lab.rooms.nan.watch.watch.Watch`.

    on_bad="raise" stops at the end of the first forward that made a NaN or an infinity; a function given as
    on_bad is called instead.
    """
    from lab.errors import needs

    with needs("workload"):
        from lab.rooms.nan.watch.watch import Watch
    return Watch(model, **options)


def guard(model: Any, optimizer: Any = None, scaler: Any = None, **options: Any) -> Guard:
    """Make a guard over a training job; for the options see `lab.rooms.nan.watch.guard.guard.Guard`.

    on_bad="keep" goes on, "raise" stops before the update that would use a bad number, "replay" runs the bad
    step again to name its operator, a function is called with the GuardStep.
    """
    from lab.errors import needs

    with needs("workload"):
        from lab.rooms.nan.watch.guard.guard import Guard
    return Guard(model, optimizer, scaler, **options)


def hugging_face_callback(**options: Any) -> Any:
    """Make the guard for `transformers.Trainer(callbacks=[...])`; its `.guard` has the findings."""
    from lab.rooms.nan.watch.guard.guard import hugging_face_callback as make

    return make(**options)


def lightning_callback(**options: Any) -> Any:
    """Make the guard for `lightning.Trainer(callbacks=[...])`; its `.guard` has the findings."""
    from lab.rooms.nan.watch.guard.guard import lightning_callback as make

    return make(**options)
