"""Ends a test run whose failed tests left threads behind; Python would wait for them for ever."""

import os
import sys
import threading

import pytest


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The summary is printed by now. The exit status stays what it is."""
    session = config.pluginmanager.get_plugin("session")
    lost = [
        thread.name
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    if lost and session is not None and session.testsfailed:
        print(f"ended beside threads of failed tests: {', '.join(lost)}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(pytest.ExitCode.TESTS_FAILED)
