"""Questions a to e, answered from a cell's tables; every answer carries checks that could have failed.

A check that cannot be made (no model known, no twin) is `not checked` with its reason: neither passed nor
failed.
"""
