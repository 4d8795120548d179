"""The sweep's findings as sentences, computed from its tables and claiming no more than the runs can support.

Every function takes tables of `SweepTables` and gives a sentence, or None if the tables hold nothing to say.
"""
