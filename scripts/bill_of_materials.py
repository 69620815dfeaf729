"""Says what a wheel of oncegate holds and needs, for programs: CycloneDX 1.6, in the folder that PEP 770 gives it.

Its parts: oncegate itself, of which commit; in a compiled wheel what mypyc links into it; what it depends on, by the names
and versions that pip goes by, those of an extra as optional. What Linux libraries were put into a wheel is said by auditwheel,
in a file beside it.
"""

import json
import re
import uuid
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAME = "sboms/oncegate.cdx.json"
"""The file, in the wheel's ``.dist-info``."""


def write(dist_info: Path, project: dict[str, Any], *, commit: str, compiled: bool) -> None:
    """Write it into the wheel's ``.dist-info``. ``project`` is that table of pyproject.toml."""
    file = dist_info / NAME
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_bill(project, commit, compiled=compiled), indent=1) + "\n")


def _bill(project: dict[str, Any], commit: str, *, compiled: bool) -> dict[str, Any]:
    purl = f"pkg:pypi/{project['name']}@{project['version']}"
    needed = _needed(project)
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": purl,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": purl,
                "components": [_runtime_of_mypyc()] if compiled else [],
                "properties": _properties(
                    ("oncegate:commit", commit), ("oncegate:build", "compiled" if compiled else "from source")
                ),
            }
        },
        "components": needed,
        "dependencies": [
            {"ref": purl, "dependsOn": [each["bom-ref"] for each in needed]},
            *({"ref": each["bom-ref"]} for each in needed),
        ],
    }
    # By its content, so that whoever builds the same again gets the same bytes.
    return {**bill, "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bill)).urn}


def _runtime_of_mypyc() -> dict[str, Any]:
    """What each compiled module is linked with: mypyc's C code, which comes with mypy."""
    found = version("mypy")
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/mypy@{found}#mypyc/lib-rt",
        "name": "mypyc/lib-rt",
        "version": found,
        "description": "The C code that modules compiled by mypyc are linked with",
        "licenses": [{"license": {"id": "MIT"}}],
        "purl": f"pkg:pypi/mypy@{found}#mypyc/lib-rt",
    }


def _needed(project: dict[str, Any]) -> list[dict[str, Any]]:
    """What it depends on, by name. pip chooses the version where it installs, within the requirement that is said."""
    required = {_name(line) for line in project["dependencies"]}
    optional = {line for extra in project["optional-dependencies"].values() for line in extra}
    lines = sorted({*project["dependencies"], *optional})
    return [
        {
            "type": "library",
            "bom-ref": f"pkg:pypi/{name}",
            "name": name,
            "scope": "required" if name in required else "optional",
            "purl": f"pkg:pypi/{name}",
            "properties": _properties(*(("oncegate:requirement", line) for line in lines if _name(line) == name)),
        }
        for name in sorted({_name(line) for line in lines})
    ]


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else requirement).lower()


def _properties(*values: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values]
