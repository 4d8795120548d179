"""The columns of the room's tables, in the order in which they are written."""

from __future__ import annotations


def _names(text: str) -> list[str]:
    return text.split()


LINKS = ("instruction", "stored", "module", "logits", "text")

EXPERIMENTS = _names("""
    rank experiment status verdict nan inf bad_leaves bad_logit_steps first_producer cause confidence
    sass_integrity sass_lines sass_sites sass_nan_lines half_nan_unique half_nan_repeats float_nan_unique
    float_nan_repeats half_subnormal_unique half_subnormal_repeats memory_nan_lines
    same_text characters watch_prefill_percent watch_decode_percent
    reason result_file log_files
""")
WHOLE_NUMBERS = _names("""
    rank nan inf bad_leaves bad_logit_steps characters sass_lines sass_sites sass_nan_lines
    half_nan_unique half_nan_repeats float_nan_unique float_nan_repeats
    half_subnormal_unique half_subnormal_repeats memory_nan_lines
""")
CHAIN = ["experiment", *(f"{link}{part}" for link in LINKS for part in ("", "_evidence"))]
APPLIED = _names("""
    experiment status what expected count values_changed logits_moved
    dtypes attention quant device skipped_quant
""")
BIRTHS = _names("experiment step phase place module how leaf")
LAYERS = _names("""
    experiment layer phase nan posinf neginf subnormal absmax numel dtype headroom first_bad_step
""")
FUNCTIONS = _names("experiment function category lines nan_lines nan_sites twin_of")

# What the page's ranking, the terminal and the page's table of instructions show of EXPERIMENTS.
# As many as a page of 1,280 pixels holds; the others follow below.
RANKING = _names("""
    rank experiment status verdict bad_leaves bad_logit_steps first_producer cause
""")
OUTPUTS = _names("""
    experiment nan inf confidence same_text characters reason
""")
TERMINAL = _names("""
    rank experiment status verdict bad_leaves bad_logit_steps sass_nan_lines first_producer
""")
SASS = _names("""
    experiment sass_integrity sass_lines sass_sites sass_nan_lines half_nan_unique half_nan_repeats
    float_nan_unique float_nan_repeats half_subnormal_unique half_subnormal_repeats memory_nan_lines
""")
