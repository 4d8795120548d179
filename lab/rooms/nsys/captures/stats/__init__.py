"""The reports of `nsys stats` from a capture, without nsys: the same headers, order and numbers.

Names, columns and rules were taken from reports that nsys 2025.3 wrote for a capture, and are compared with
them row by row in the tests. Two properties of nsys are kept: a range counts whole captures, warm-up
included, and the throughput of a copy is its bytes times 10^9 divided by its time *without remainder*.
Reports of Kineto traces have the same columns; their kernels are named as Kineto names them.
"""
