"""What counts as a failure, what as an error, and that nothing unseen passes."""

from __future__ import annotations

import pytest

from lab.errors import UsageError
from lab.rooms.trials.failure import Reader, parse


def judged(fail, *lines, code=0, timed_out=False):
    reader = Reader(parse(fail))
    for line in lines:
        reader.line(line)
    return reader.verdict(code, timed_out=timed_out)


def test_a_number_that_the_output_never_says_is_an_error_and_no_pass():
    assert judged("nan in loss", "training", "done") == (
        "error",
        "the output never says loss: nothing to judge",
    )


def test_a_crash_is_an_error_unless_the_exit_code_is_the_failure():
    assert judged("nan in loss", "loss: 1", code=1)[0] == "error"
    assert judged("exit!=0 or nan in loss", code=1) == ("fail", "exit code 1")
    assert judged("exit==3", code=3)[0] == "fail" and judged("exit==3", code=1)[0] == "error"
    assert judged("exit==3")[0] == "pass"


def test_numbers_fields_and_expressions():
    assert judged("loss > 3", "loss: 2", "loss: 4", "loss: 1") == ("fail", "loss > 3: line 2")
    assert judged("eval.acc < 0.9", '{"eval": {"acc": 0.5}}')[0] == "fail"
    assert judged("eval.acc < 0.9", '{"eval": {"acc": 0.95}}')[0] == "pass"
    assert judged("/Xid \\d+/", "NVRM: Xid 79")[0] == "fail" and judged("/Xid \\d+/", "fine")[0] == "pass"
    assert judged("inf in loss", "loss: -inf")[0] == "fail"


def test_a_timeout_is_an_error_unless_it_is_the_failure():
    assert judged("exit!=0", code=-9, timed_out=True) == ("error", "ran past --trial-timeout")
    assert judged("exit!=0 or timeout", code=-9, timed_out=True) == ("fail", "timeout")


@pytest.mark.parametrize(
    "text", ["", "nan", "loss", "exit", "loss ~ 3", "/(/", "loss > 1.2.3", "exit!=0 or "]
)
def test_what_says_no_failure_is_refused_by_its_words(text):
    with pytest.raises(UsageError):
        parse(text)


def test_step_times_are_the_median_of_what_the_output_says():
    reader = Reader(parse("exit!=0"), "step_ms")
    for line in ("step_ms=9000", "step_ms=100", "step_ms=101", "step_ms: nan", '{"step_ms": 102}'):
        reader.line(line)
    assert reader.step_time == 101.5


@pytest.mark.parametrize(
    "line",
    [
        "loss: nan",
        "loss=NaN",
        '{"loss": NaN}',
        "step 3 | loss nan: 1 loss = -nan",
        "loss: tensor(nan)",
        "loss is nan",
        "loss  -nan",
        '{"loss": null}',
        '{"step": 3, "loss": "NaN"}',
        "{'loss': 'nan', 'epoch': 1}",
        "loss: [nan, 1.0]",
        "loss: array(nan)",
        "{'loss': np.float32(nan), 'lr': np.float64(1e-3)}",
        "loss: torch.FloatTensor([1.0, nan])",
        "loss: tensor([0.5, 0.25, nan])",
        "loss=[1. nan 3.]",
        '{"loss": [[1, 2], [3, NaN]]}',
        '{"loss": ["1", "nan"]}',
        "loss -> nan",
        "\x1b[31mloss: NAN\x1b[0m",
        "  5%| | 1/20 [00:01, loss=0.4]\r 10%| | 2/20 [00:02, loss=nan]",
    ],
)
def test_a_nan_is_found_as_programs_write_it(line):
    assert judged("nan in loss", "loss: 1", line)[0] == "fail"


@pytest.mark.parametrize(
    "line",
    [
        "loss: 0.5",
        "val_loss: nan loss: 1",
        "loss: nanosecond loss: 2",
        "loss: inf",
        "nan_loss: 1",
        "nan loss: 0.5",
        "loss nanny",
        "loss: None",
        "loss: nano",
        "loss: [0.5, 0.25]",
    ],
)
def test_what_is_no_nan_of_this_number_passes(line):
    assert judged("nan in loss", "loss: 1", line) == ("pass", "")


def test_numbers_are_read_whole():
    """A part of a number, taken for it, would pass what failed."""
    assert judged("loss > 1000", "loss: 1,234.5")[0] == "fail"
    assert judged("loss > 1", "loss: 12abc")[0] == "error" == judged("loss > 0", "loss: 1.2.3")[0]
    assert judged("loss > 1e300", '{"loss": 1' + "0" * 400 + "}")[0] == "fail"


def test_an_argument_of_what_computes_the_loss_is_no_loss():
    assert judged("loss > 0.5", "loss: CrossEntropyLoss(0.9)", "loss: 0.1")[0] == "pass"
    assert judged("loss > 0.5", "loss: torch.FloatTensor([0.9])")[0] == "fail"


def test_signals_are_the_codes_that_shells_show():
    assert judged("exit!=0", code=139) == ("fail", "exit code 139 (SIGSEGV)")
    assert judged("exit==-11", code=139)[0] == "fail" == judged("exit==139", code=139)[0]
    assert judged("exit==-11", code=134) == (
        "error",
        "exit code 134 (SIGABRT) is not the failure that --fail names",
    )


def test_what_was_judged_is_the_same_only_for_the_same_numbers_in_the_same_order():
    def judged(*lines: str) -> str:
        reader = Reader(parse("nan in loss or loss > 9"), "ms")
        for line in lines:
            reader.line(line)
        return reader.judged

    assert judged("loss: 1 ms: 7", "took 3 s") == judged("loss: 1 ms: 8", "took 4 s") != ""
    assert judged("loss: 1", "loss: 2") != judged("loss: 2", "loss: 1") and judged("ms: 5") == ""


def test_a_comparison_that_meets_nan_has_not_judged_it():
    """NaN is neither above nor below: a loss that was never above 3 because it was NaN is no pass."""
    verdict, why = judged("loss > 3", "loss: 1", "loss: nan")
    assert verdict == "error" and "loss is NaN in line 2" in why and "or nan in loss" in why
    assert judged("loss > 3 or nan in loss", "loss: nan") == ("fail", "nan in loss: line 1")
    assert judged("loss > 3", "loss: nan", "loss: 4")[0] == "fail"
    assert judged("eval.acc < 0.9", '{"eval": {"acc": [0.95, null]}}')[0] == "error"
    assert judged("eval.acc < 0.9", '{"eval": {"acc": [0.95, 0.3]}}')[0] == "fail"


def test_a_long_list_that_ends_in_no_number_is_read_in_one_pass():
    """Each comma could be within a number or between two: tried both ways, forty would never end."""
    many = ",".join(["100"] * 4000)
    assert judged("nan in loss", f"loss: [{many}x", "loss: 1") == ("pass", "")
    assert judged("loss > 99999", f"loss: [{many}]") == ("pass", "")


@pytest.mark.parametrize(
    "rest",
    [
        " " * 65000,
        "1" * 65000 + "x",
        "1e" * 30000,
        "[" * 65000,
        "'" * 65000,
        " is loss" * 8000,
        "1 nan loss" + " " * 65000 + "x:",
        "loss" + " " * 65000,
        "loss (" * 10000,
    ],
)
def test_a_line_of_nothing_but_a_number_that_never_ends_holds_nothing_up(rest):
    """Two ways to read each of 65,000 digits are four billion steps."""
    assert judged("nan in loss", f"loss: {rest}", "loss: 1") == ("pass", "")


def test_what_is_not_there_is_an_error_unless_fail_names_its_exit_code():
    """127 is a shell's `not found`, and no failure of the program that never ran."""
    assert judged("exit!=0", "sh: 1: pyhton: not found", code=127) == (
        "error",
        "cannot run: exit code 127 (a command is not found): sh: 1: pyhton: not found",
    )
    assert judged("exit>0", code=126)[1] == "cannot run: exit code 126 (not executable)"
    assert judged("exit==127", code=127)[0] == "fail" == judged("exit!=1", code=127)[0]
    assert judged("exit!=0 or /not found/", "x: not found", code=127)[0] == "fail"


TRACE = ("Traceback (most recent call last):", '  File "x.py", line 1, in <module>')


@pytest.mark.parametrize(
    "code, lines",
    [
        (2, ["/usr/bin/python3: can't open file '/src/x.py': [Errno 2] No such file or directory"]),
        (1, ["python: No module named trian"]),
        (1, [*TRACE, "    import nothere", "ModuleNotFoundError: No module named 'nothere'"]),
        (1, [*TRACE, "ImportError: libcudart.so.11.0: cannot open shared object file: No such file"]),
    ],
)
def test_a_command_that_never_began_is_no_failing_trial(code, lines):
    verdict, why = judged("exit!=0", *lines, code=code)
    assert verdict == "error" and why == f"cannot run: {lines[-1]}"
    assert judged("exit!=0 or /./", *lines, code=code)[0] == "fail", "named by its text, it counts"
    began = [f"step {at}" for at in range(50)]
    assert judged("exit!=0", *began, *lines, code=code) == ("fail", f"exit code {code}")


def test_a_program_that_was_killed_has_not_failed_by_itself_unless_fail_names_it():
    assert (
        judged("exit!=0", code=137)[0] == "error" and "killed from outside" in judged("exit!=0", code=137)[1]
    )
    assert judged("exit==137", code=137)[0] == "fail"
    assert judged("exit!=0 or nan in loss", "loss: nan", code=137) == ("fail", "nan in loss: line 1")


def test_a_pass_that_ends_in_an_error_says_so():
    """`python train.py | tee log` ends with tee's exit code."""
    verdict, why = judged("nan in loss", "loss: 1", *TRACE, "RuntimeError: CUDA error", "a hint", "another")
    assert (verdict, why) == ("pass", "although its output ends in an error: RuntimeError: CUDA error")
    for before in ("Exception ignored in: <function D.__del__>", "--- Logging error ---"):
        assert judged("exit!=0", before, *TRACE, "OSError: gone") == ("pass", "")
    assert judged("exit!=0", *TRACE, "OSError: tried again", *("loss: 1",) * 9) == ("pass", "")


def test_lines_are_judged_as_they_are():
    odd = ["", "\x1b[31mred\x1b[0m", "caf\u00e9 \ud800", "x" * 200_000, "bad\r", "last"]
    assert judged("/^red$/", *odd) == ("fail", "/^red$/: line 2")
    assert judged("/^caf\u00e9/", *odd)[1].endswith("line 3")
    assert judged("/x{100}$/", *odd)[1].endswith("line 4")
    assert judged("/^last$/", *odd)[1].endswith("line 6") and judged("/none/", *odd) == ("pass", "")
