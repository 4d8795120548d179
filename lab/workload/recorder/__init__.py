"""The one recorder: what a program computes, per rank, step, module and op, as checksums and sampled values.

`record` is for one model and a block of code (`lab.same`), `training` for an unchanged training program
(`lab run replay`); `bits` are the checksums of both and of `lab run trials gpus`. `format` reads what they
write, without torch.
"""
