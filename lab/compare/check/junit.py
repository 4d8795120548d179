"""A gate's verdict as JUnit's XML, which CI systems show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

from lab.compare.check.gate import Verdict, sentences
from lab.compare.signatures import sentences as signature_words
from lab.compare.whole import total_words
from lab.core.files import write_atomic
from lab.core.words import printable

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(verdict: Verdict, path: Path) -> Path:
    """One test case per total, one for the signatures, one for doubts: a proven slowdown fails, what is
    undecided is skipped; exact counts that changed are the suite's output. Raises StorageError where the file
    cannot be written."""
    cases = [
        (f"{total.name}, {total.statistic}", total.outcome, total_words(total))
        for total in verdict.metrics
        if total.decides
    ]
    if verdict.signatures:
        words = "\n".join(signature_words(verdict.signatures))
        cases.append(("signatures", verdict.signatures.outcome, words))
    if verdict.doubts:
        cases.append(("processes", "undecided", "\n".join(verdict.doubts)))
    suite = xml.Element("testsuite", name="lab check")
    outcomes = [outcome for _, outcome, _ in cases]
    skipped = sum(outcome not in ("regression", "excluded") for outcome in outcomes)
    suite.attrib |= {"tests": str(len(cases)), "failures": str(outcomes.count("regression"))}
    suite.attrib |= {"skipped": str(skipped), "errors": "0"}
    for case in cases:
        _case(suite, *case)
    xml.SubElement(suite, "system-out").text = _text("\n".join(sentences(verdict)))
    xml.indent(suite)
    data = xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    write_atomic(path, data + b"\n")
    return path


def _case(suite: xml.Element, name: str, outcome: str, words: str) -> None:
    case = xml.SubElement(suite, "testcase", classname="lab.check", name=_text(name))
    if outcome == "regression":
        xml.SubElement(case, "failure", message=_text(words), type="regression")
    elif outcome != "excluded":
        xml.SubElement(case, "skipped", message=_text(words))
    else:
        xml.SubElement(case, "system-out").text = _text(words)


def _text(text: str) -> str:
    return _NOT_XML.sub("?", printable(text))
