#!/usr/bin/env bash
# Fetches mermaid (MIT licence) from npm into build/mermaid, for the diagrams of the site. Without npm, or without a
# connection, the site shows the text of the diagrams instead.
set -euo pipefail

version=12.3.0
sha256=336df803d87a38b70a01e736e666c8f7601d2ce42f5e47c8fafe5d721074b9a3
folder=build/mermaid

[ -e "$folder/mermaid.min.js" ] && exit 0
fetched=$(mktemp -d)
trap 'rm -rf "$fetched"' EXIT
if ! npm pack --silent --pack-destination "$fetched" "mermaid@$version" >/dev/null; then
  echo "site: npm could not fetch mermaid, so diagrams are shown as text" >&2
  exit 0
fi
tar --extract --gzip --file "$fetched/mermaid-$version.tgz" --directory "$fetched" package/dist/mermaid.min.js
echo "$sha256  $fetched/package/dist/mermaid.min.js" | sha256sum --check --quiet
mkdir -p "$folder"
mv "$fetched/package/dist/mermaid.min.js" "$folder/"
