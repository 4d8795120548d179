"""The semi-Markov CRF: its plain reference, its fast forms and what checks them.

Everything here needs torch.
"""
