"""Prints values of the chart that name images by digest: `python docker/digests.py METADATA.json`.

METADATA.json is the file that `docker buildx bake --metadata-file` writes. Each image is named by repository
and digest. The image of the verifier with models is left out. A run that needs it names it in
`verifier.image`, by repository and digest, in values that come after these. The image `cpu`, for the console,
may be missing.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMPONENTS = {
    "services": (("actor",), ("verifier",), ("replay",), ("tests",)),
    "learner": (("learner",), ("teacher",)),
    "rollout": (("rollout", "defaults"),),
    "cpu": (("console",),),
}
"""Image → the paths of the components that run it, in the values of the chart."""
OPTIONAL = ("cpu",)
"""Images that a release without a console does not need."""


def values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values. Errors: ValueError for an image that the build did not make or push."""
    result: dict[str, Any] = {}
    for image, components in COMPONENTS.items():
        digest = metadata.get(image, {}).get("containerimage.digest")
        if digest is None and image in OPTIONAL:
            continue
        if digest is None:
            raise ValueError(f"digests: the build has no digest of {image}; build and push it: bake … --push")
        for component in components:
            section = result
            for key in component:
                section = section.setdefault(key, {})
            section["image"] = {"repository": f"slipstream/{image}", "digest": digest}
    return result


if __name__ == "__main__":
    print(json.dumps(values(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))), indent=2))
