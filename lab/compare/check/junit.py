"""A gate's verdict as JUnit's XML, which CI systems show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

from lab.compare.check.gate import Verdict, metric_words, sentences
from lab.compare.check.signatures import sentences as signature_words
from lab.core.files import write_atomic
from lab.core.words import printable

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(found: Verdict, path: Path) -> Path:
    """One test case per metric, one for the signatures, one for doubts: a proven slowdown fails, what is
    undecided is skipped; exact counts that changed are the suite's output. Raises StorageError where the file
    cannot be written."""
    cases = [(one.name, one.outcome, metric_words(one)) for one in found.metrics]
    if found.signatures:
        cases.append(("signatures", found.signatures.outcome, "\n".join(signature_words(found.signatures))))
    if found.doubts:
        cases.append(("processes", "undecided", "\n".join(found.doubts)))
    suite = xml.Element("testsuite", name="lab check")
    outcomes = [outcome for _, outcome, _ in cases]
    suite.attrib |= {"tests": str(len(cases)), "failures": str(outcomes.count("regression"))}
    suite.attrib |= {
        "skipped": str(sum(one not in ("regression", "excluded") for one in outcomes)),
        "errors": "0",
    }
    for case in cases:
        _case(suite, *case)
    xml.SubElement(suite, "system-out").text = _text("\n".join(sentences(found)))
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
