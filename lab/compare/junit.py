"""A gate's verdict as JUnit's XML, which CI systems show."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as xml

from lab.compare.gate import Metric, Verdict, metric_words, sentences
from lab.core.files import write_atomic
from lab.core.words import printable

_NOT_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(found: Verdict, path: Path) -> Path:
    """One test case per metric: a proven slowdown fails, an undecided one is skipped; exact counts that
    changed are the suite's output. Raises StorageError where the file cannot be written."""
    suite = xml.Element("testsuite", name="lab check")
    failed = sum(one.outcome == "regression" for one in found.metrics)
    skipped = sum(one.outcome == "undecided" for one in found.metrics)
    suite.attrib |= {"tests": str(len(found.metrics)), "failures": str(failed), "skipped": str(skipped)}
    suite.set("errors", "0")
    for one in found.metrics:
        _case(suite, one)
    xml.SubElement(suite, "system-out").text = _text("\n".join(sentences(found)))
    xml.indent(suite)
    data = xml.tostring(suite, encoding="utf-8", xml_declaration=True)
    write_atomic(path, data + b"\n")
    return path


def _case(suite: xml.Element, one: Metric) -> None:
    case = xml.SubElement(suite, "testcase", classname="lab.check", name=_text(one.name))
    words = _text(metric_words(one))
    if one.outcome == "regression":
        xml.SubElement(case, "failure", message=words, type="regression")
    elif one.outcome == "undecided":
        xml.SubElement(case, "skipped", message=words)
    else:
        xml.SubElement(case, "system-out").text = words


def _text(text: str) -> str:
    return _NOT_XML.sub("?", printable(text))
