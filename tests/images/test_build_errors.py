"""A failed build says what to do next."""

from __future__ import annotations

import pytest

from lab.images.build import build_error
from lab.images.targets import targets


@pytest.mark.parametrize(
    "line, fix",
    [
        ("SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] ...", "SSL_CERT_FILE"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "make locks"),
        ("write /x: no space left on device", "free some space"),
        ("pull access denied, repository does not exist", "--base"),
        ("dial tcp: lookup registry on 1.1.1.1:53: no such host", "--base"),
        ("urllib.error.URLError: <urlopen error [Errno -2] Name or service not known>", "NSYS_PACKAGE="),
        ("E: Unable to locate package nsight-systems-cli", "NSYS_PACKAGE="),
    ],
)
def test_what_the_builder_says_becomes_the_next_thing_to_do(line, fix):
    error = build_error(targets(["cpu"])[0], "b", ["before", line, "after"])
    assert fix in error.fix and line in error.problem and error.exit_code == 6


def test_an_unfamiliar_failure_shows_its_last_lines():
    error = build_error(targets(["cpu"])[0], "b", [f"line {i}" for i in range(99)])
    assert error.fix is None and "line 98" in error.problem and "line 3\n" not in error.problem
