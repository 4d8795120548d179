"""What an op costs and what a board can do: the one place for FLOPs, bytes, classes of kernels and peaks.

`ops.work_of` counts FLOPs and bytes of an op from its recorded arguments, by its row of ops.csv; `classes`
tells what kind of work a kernel does; `boards.board_of` finds a device's data sheet (boards.toml).
"""
