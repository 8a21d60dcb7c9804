"""The specifications load without torch, and every name that the package exports exists."""

import os
import subprocess
import sys

import pytest
import slipstream.algorithms


@pytest.mark.parametrize("module", ["slipstream.algorithms", "slipstream.algorithms.spec"])
def test_importing_specifications_does_not_import_torch(module: str) -> None:
    program = (
        f"import {module}, sys; from slipstream.algorithms import token_versions;"
        "assert token_versions([(4, 0, 2), (5, 2, 3)], 3) == [4, 4, 5];"
        "assert 'torch' not in sys.modules and 'pydantic' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_every_public_name_can_be_had_and_none_is_a_module() -> None:
    program = (
        "import types, slipstream.algorithms as a;"
        "found = {name: getattr(a, name) for name in a.__all__};"
        "again = {name: getattr(a, name) for name in a.__all__};"  # a submodule of the name is loaded by now
        "bad = [n for n in found if isinstance(found[n], types.ModuleType) or found[n] is not again[n]];"
        "assert not bad, bad"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, env=environment)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'polcy_loss'"):
        slipstream.algorithms.__getattr__("polcy_loss")
