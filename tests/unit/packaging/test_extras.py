"""With the core alone, every part that needs more says what to install; each runs in a process without that package."""

from __future__ import annotations

import subprocess
import sys

import pytest

PARTS = [
    ("import toril.lake", "pyarrow", "lake"),
    ("import toril.lake", "deltalake", "lake"),
    ("from toril.lake import Lake; Lake('x').query('select 1')", "duckdb", "lake"),
    ("import toril.browser", "playwright", "browser"),
    ("import toril.telemetry.prometheus", "prometheus_client", "prometheus"),
    ("import toril.observe.exporter", "prometheus_client", "prometheus"),
    ("from toril.codecs import Zstd; Zstd()", "zstandard", "codecs"),
    ("from toril.codecs import AesGcm; AesGcm({'a': bytes(32)})", "cryptography", "codecs"),
    ("import toril.telemetry.opentelemetry", "opentelemetry", "otel"),
    ("import toril.integrations.starlette", "starlette", "starlette"),
    ("import toril.integrations.fastapi", "fastapi", "fastapi"),
    ("import toril.integrations.litestar", "litestar", "litestar"),
    ("import toril.integrations.flask", "flask", "flask"),
    ("import toril.integrations.outbox.sqlalchemy", "sqlalchemy", "sqlalchemy"),
    ("import toril.integrations.django.apps", "django", "django"),
    ("import pyspark_toril", "pyspark", "spark"),
    ("import toril.spark; toril.spark.register(None)", "pyspark", "spark"),
    ("import toril.spark.pipeline", "pyarrow", "spark"),
]


def without(module: str, program: str) -> subprocess.CompletedProcess[str]:
    """A Python in which `module` cannot be imported."""
    command = [sys.executable, "-c", f"import sys; sys.modules[{module!r}] = None\n{program}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=50)


@pytest.mark.parametrize(("program", "module", "extra"), PARTS)
def test_a_part_without_its_package_says_what_to_install(program: str, module: str, extra: str) -> None:
    run = without(module, program)
    last = run.stderr.strip().splitlines()[-1]
    said = f'{module} is not installed; run `pip install "toril[{extra}]"`'
    assert (run.returncode, last) == (1, f"toril.errors.ExtraMissing: {said}")
    assert "During handling" not in run.stderr


@pytest.mark.parametrize(("program", "module", "extra"), PARTS)
def test_code_that_can_do_without_a_part_may_catch_an_import_error(
    program: str, module: str, extra: str
) -> None:
    caught = f"""
from toril import TorilError
for kind in (ImportError, ModuleNotFoundError, TorilError):
    try:
        {program}
    except kind as error:
        assert (error.name, error.extra) == ({module!r}, {extra!r})
    else:
        raise SystemExit("nothing was raised")
"""
    assert without(module, caught).returncode == 0


@pytest.mark.parametrize("module", ["typer", "rich"])
def test_the_command_without_its_packages_says_what_to_install_in_one_line(module: str) -> None:
    run = without(module, "import toril.cli; toril.cli.main()")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f'toril: {module} is not installed; run `pip install "toril[cli]"`\n'


def test_a_module_that_is_missing_in_toril_itself_is_not_blamed_on_an_extra() -> None:
    run = without("toril.lake.tables", "from toril.lake import TABLES")
    assert "ModuleNotFoundError" in run.stderr
    assert "pip install" not in run.stderr
