"""Downloads a model of the hub: `python -m slipstream.cli.fetch MODEL`, where MODEL is the `model` section as
JSON.

Prints `{"total": BYTES, "folder": PATH}` if there is something to download, then `{"directory": PATH,
"commit": COMMIT}` or `{"error": TEXT}`.
"""

import json
import os
import sys

from slipstream.config.sections.model import ModelConfig
from slipstream.hub.access import HubError, is_offline
from slipstream.hub.model import cache_folder, cached_model, fetch_model, size_of
from slipstream.processes.lifetime.parent_death import die_with_parent


def main(arguments: list[str]) -> int:
    """Run the program and return its exit status."""
    die_with_parent(os.getppid())
    model = ModelConfig.model_validate_json(arguments[0])
    try:
        if not is_offline(model) and cached_model(model, weights=True) is None:
            _say(total=size_of(model), folder=str(cache_folder(model)))
        local = fetch_model(model, weights=True)
    except HubError as error:
        _say(error=str(error))
        return 1
    _say(directory=str(local.directory), commit=local.commit)
    return 0


def _say(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
