"""The one recorder: what a program computes, per rank, step, module and op, as checksums and sampled values.

`lab.same` records one model in a block of code, `lab run replay` an unchanged training program; `bits` are
the checksums of both and of `lab run trials gpus`. `format` reads what they write, without torch;
`lab.compare.same` judges it.
"""
