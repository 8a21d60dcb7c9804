"""Create the volumes of a pod as directories, with the owners and modes of Kubernetes."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chart.kubelet.environment import Facts, Store, field_value

READ_ONLY_KINDS = ("configMap", "secret", "projected", "downwardAPI")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory or file of this machine, and its path in the container."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Volumes:
    """Creates volumes: those of a pod in `pod_directory`; claims, which outlive the pod, in `claims`."""

    pod_directory: Path
    claims: Path
    store: Store
    facts: Facts

    def lay_out(self, spec: Mapping[str, Any], claim_templates: list[Mapping[str, Any]]) -> dict[str, Path]:
        """Create the volumes; return the directory of each. Errors: KeyError for a missing object or key."""
        group = (spec.get("securityContext") or {}).get("fsGroup")
        directories: dict[str, Path] = {}
        for template in claim_templates:
            name = template["metadata"]["name"]
            directories[name] = _claim(self.claims / f"{name}-{self.facts.pod_name}")
        for volume in spec.get("volumes") or []:
            directories[volume["name"]] = self._one(volume)
        for name, path in directories.items():
            if group is not None:
                kinds = next((v for v in spec.get("volumes") or [] if v["name"] == name), {})
                _give_to_group(path, group, read_only=any(kind in kinds for kind in READ_ONLY_KINDS))
        return directories

    def _one(self, volume: Mapping[str, Any]) -> Path:
        path = self.pod_directory / "volumes" / volume["name"]
        if "persistentVolumeClaim" in volume:
            return _claim(self.claims / volume["persistentVolumeClaim"]["claimName"])
        if path.exists():
            return path  # a restarted container has its old files
        path.mkdir(parents=True)
        if "emptyDir" in volume:
            path.chmod(0o777)
            return path
        files, mode = self._files(volume)
        _publish(path, files, mode)
        return path

    def _files(self, volume: Mapping[str, Any]) -> tuple[dict[str, bytes], int]:
        if "configMap" in volume:
            source = volume["configMap"]
            return _items(self.store.config_maps, source["name"], source), source.get("defaultMode", 0o644)
        if "secret" in volume:
            source = volume["secret"]
            return _items(self.store.secrets, source["secretName"], source), source.get("defaultMode", 0o644)
        if "downwardAPI" in volume:
            items = volume["downwardAPI"]["items"]
            texts = {item["path"]: field_value(item["fieldRef"]["fieldPath"], self.facts) for item in items}
            return {path: text.encode() for path, text in texts.items()}, 0o644
        if "projected" in volume:
            return self._projected(volume["projected"]), volume["projected"].get("defaultMode", 0o644)
        raise KeyError(f"volume {volume['name']} is of a kind that the test kubelet does not have")

    def _projected(self, projected: Mapping[str, Any]) -> dict[str, bytes]:
        files: dict[str, bytes] = {}
        for source in projected["sources"]:
            renamed = (
                {"secret": {**source["secret"], "secretName": source["secret"]["name"]}}
                if "secret" in source
                else source
            )
            files.update(self._files({"name": "projected", **renamed})[0])
        return files


def _items(
    table: Mapping[str, Mapping[str, bytes]], name: str, source: Mapping[str, Any]
) -> dict[str, bytes]:
    if name not in table and source.get("optional"):
        return {}
    if name not in table:
        raise KeyError(f"there is no ConfigMap or Secret {name}")
    keys = source.get("items")
    if keys is None:
        return dict(table[name])
    return {item["path"]: table[name][item["key"]] for item in keys}


def _publish(path: Path, files: Mapping[str, bytes], mode: int) -> None:
    """Write the files into a directory behind a symbolic link that an update replaces, as in a kubelet."""
    version = path / "..version"
    version.mkdir(mode=0o755)
    for name, content in files.items():
        target = version / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    (path / "..data").symlink_to(version.name)
    for first in {Path(name).parts[0] for name in files}:
        (path / first).symlink_to(Path("..data") / first)


def _claim(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _give_to_group(path: Path, group: int, *, read_only: bool) -> None:
    """Give everything to a group, which may read it, and write unless `read_only`, as fsGroup does."""
    for entry in [path, *path.rglob("*")]:
        if entry.is_symlink():
            continue
        os.chown(entry, -1, group)
        more = 0o440 if read_only else 0o660
        entry.chmod(entry.stat().st_mode | more | (0o2110 if entry.is_dir() else 0))


def container_mounts(
    container: Mapping[str, Any], volumes: Mapping[str, Path], *, always_read_only: set[str]
) -> list[Mount]:
    """Return the mounts of a container, outer directories first. Errors: KeyError for an unknown volume."""
    mounts = []
    for mount in container.get("volumeMounts") or []:
        source = volumes[mount["name"]]
        if mount.get("subPath"):
            source = _sub_path(source, mount["subPath"])
        read_only = bool(mount.get("readOnly")) or mount["name"] in always_read_only
        mounts.append(Mount(source=source, target=mount["mountPath"].rstrip("/"), read_only=read_only))
    mounts.sort(key=lambda mount: len(Path(mount.target).parts))
    for outer in mounts:
        for inner in mounts:
            below = Path(inner.target).is_relative_to(outer.target) and inner is not outer
            if below and outer.source.is_dir():
                place = outer.source / Path(inner.target).relative_to(outer.target)
                if inner.source.is_dir():
                    place.mkdir(parents=True, exist_ok=True)
    return mounts


def _sub_path(source: Path, below: str) -> Path:
    path = source / below
    if not path.exists():
        path.mkdir(parents=True)  # the kubelet creates a directory for a missing subPath
        shutil.copystat(source, path)
        os.chown(path, -1, source.stat().st_gid)
    return path.resolve()
