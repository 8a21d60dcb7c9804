"""Fills a model directory of the chart: `python -m slipstream.cli.download REPOSITORY REVISION DIRECTORY`.

Pods that share the directory download the files once. The hub's library reads these environment variables:
HTTPS_PROXY, HF_ENDPOINT (a mirror), SSL_CERT_FILE (an authority), HF_HUB_DOWNLOAD_TIMEOUT.
Exit status: 0 once the directory is complete; 1 when the hub or the directory fails.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from slipstream.hub import access, shared


def main(argv: Sequence[str]) -> int:
    """Run the program and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m slipstream.cli.download")
    parser.add_argument("repository", help="repository of the hub, as organisation/name")
    parser.add_argument("revision", help="commit or tag")
    parser.add_argument("directory", type=Path, help="directory to fill")
    parser.add_argument(
        "--without-weights", action="store_true", help="load the configuration and the tokenizer alone"
    )
    arguments = parser.parse_args(argv)
    try:
        shared.load_once(
            arguments.repository,
            arguments.revision,
            arguments.directory,
            say=_say,
            weights=not arguments.without_weights,
        )
    except (access.HubError, OSError) as error:
        print(f"slipstream download: {error}", file=sys.stderr)
        return 1
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
