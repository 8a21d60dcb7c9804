"""Prints values of the chart that name images by digest: `python docker/digests.py METADATA.json`.

The file is that of `docker buildx bake --metadata-file`. Each digest stands beside its repository.
The image of the verifier with models is left out. A run that needs it names it in `verifier.image`, by
repository and digest, in values that come after these.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOMS = {
    "services": (("actor",), ("verifier",), ("replay",), ("tests",)),
    "learner": (("learner",), ("teacher",)),
    "rollout": (("rollout", "defaults"),),
}
"""The pods of each image, as keys of the values."""


def values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The values. Errors: ValueError for an image that the build did not make or push."""
    result: dict[str, Any] = {}
    for image, rooms in ROOMS.items():
        digest = metadata.get(image, {}).get("containerimage.digest")
        if digest is None:
            raise ValueError(f"digests: the build has no digest of {image}; build and push it: bake … --push")
        for room in rooms:
            place = result
            for key in room:
                place = place.setdefault(key, {})
            place["image"] = {"repository": f"slipstream/{image}", "digest": digest}
    return result


if __name__ == "__main__":
    print(json.dumps(values(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), indent=2))
