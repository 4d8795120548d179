"""What a folder holds decides which audits run."""

from __future__ import annotations

import pytest

from lab.errors import BadDataError, MissingError
from lab.rooms.kernels.audit.folder import audit_folder


def test_a_folder_without_numbers_and_a_broken_file_are_errors_in_words(tmp_path):
    with pytest.raises(MissingError, match="nothing here"):
        audit_folder(tmp_path)
    (tmp_path / "x_kernel_counts.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadDataError, match="no column"):
        audit_folder(tmp_path)
    (tmp_path / "x_kernel_counts.csv").unlink()
    (tmp_path / "isolated_kernels_timing.json").write_text("{")
    with pytest.raises(BadDataError, match="not JSON"):
        audit_folder(tmp_path)
