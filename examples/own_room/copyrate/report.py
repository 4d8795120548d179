"""From the step's file to a sentence and a page. Runs without the machine that measured."""

import json

from lab.core.plan import Findings
from lab.report.page import write_page
from lab.report.parts import Page, Points, Section
from lab.report.provenance import provenance


def report(folder, out, run):
    rate = json.loads((folder / "copy/rate.json").read_text())
    sentence = f"A copy of {rate['mib']} MiB runs at {rate['gib_per_s']:.1f} GiB/s."
    page = Page(
        title="Copy rate",
        question="How fast does this machine copy memory?",
        verdict=[sentence],
        status="ok",
        sections=[Section("Rate", [Points([sentence, "The fastest of eight copies, from copy/rate.json."])])],
        provenance=provenance(folder, run.manifest if run else None),
    )
    return Findings([sentence], "ok", [write_page(page, out / "report.html")], sentence)
