from unittest import mock

import pytest


@pytest.fixture(autouse=True, scope="session")
def files_need_not_survive_a_power_cut():
    """Thousands of small files are written here; waiting for the disk each time takes most of the time."""
    with mock.patch("os.fsync"):
        yield
