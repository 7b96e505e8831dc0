from __future__ import annotations

import pytest

from indelible.models.causal import CausalModel
from indelible.models.load import LoadOptions, load_model


@pytest.fixture(scope="session")
def compat_model() -> CausalModel:
    """The embedded model in float32 with the released code's rendering."""
    model, _ = load_model("builtin:smollm2-135m-instruct", LoadOptions(dtype="float32", template="icp-mia"))
    return model
