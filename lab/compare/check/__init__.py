"""`lab check BASE HEAD`: fresh processes of both sides, judged by their repeats."""
