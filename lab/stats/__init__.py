"""Intervals of time (`intervals`), robust statistics (`robust`), effects of conditions (`effects`), rates of
failure (`rates`), the sequential test of a cure (`sprt`), several tests at once (`several`).
"""
