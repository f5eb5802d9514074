"""Licences that data come under: SPDX identifiers, and what the Hugging Face hub calls them.

>>> spdx_url("CC-BY-4.0"), hub_licence("ODbL-1.0"), hub_licence("ask the ministry"), hub_licence(None)
('https://spdx.org/licenses/CC-BY-4.0.html', 'odbl', 'other', 'unknown')
"""

from __future__ import annotations

_HUB = {
    "AGPL-3.0-only": "agpl-3.0",
    "AGPL-3.0-or-later": "agpl-3.0",
    "Apache-2.0": "apache-2.0",
    "BSD-3-Clause": "bsd-3-clause",
    "CC-BY-3.0": "cc-by-3.0",
    "CC-BY-4.0": "cc-by-4.0",
    "CC-BY-NC-3.0": "cc-by-nc-3.0",
    "CC-BY-NC-4.0": "cc-by-nc-4.0",
    "CC-BY-NC-ND-3.0": "cc-by-nc-nd-3.0",
    "CC-BY-NC-ND-4.0": "cc-by-nc-nd-4.0",
    "CC-BY-NC-SA-3.0": "cc-by-nc-sa-3.0",
    "CC-BY-NC-SA-4.0": "cc-by-nc-sa-4.0",
    "CC-BY-ND-4.0": "cc-by-nd-4.0",
    "CC-BY-SA-3.0": "cc-by-sa-3.0",
    "CC-BY-SA-4.0": "cc-by-sa-4.0",
    "CC0-1.0": "cc0-1.0",
    "CDLA-Permissive-1.0": "cdla-permissive-1.0",
    "CDLA-Permissive-2.0": "cdla-permissive-2.0",
    "CDLA-Sharing-1.0": "cdla-sharing-1.0",
    "etalab-2.0": "etalab-2.0",
    "EUPL-1.2": "eupl-1.2",
    "GPL-3.0-only": "gpl-3.0",
    "GPL-3.0-or-later": "gpl-3.0",
    "MIT": "mit",
    "ODbL-1.0": "odbl",
    "ODC-By-1.0": "odc-by",
    "PDDL-1.0": "pddl",
    "Unlicense": "unlicense",
}
_BY_LOWER_CASE = {identifier.lower(): identifier for identifier in _HUB}


def spdx_identifier(licence: str) -> str | None:
    """The SPDX identifier that `licence` is, in whatever case; None for other words."""
    return _BY_LOWER_CASE.get(licence.lower())


def spdx_url(licence: str) -> str | None:
    """The page of a licence that is named by its SPDX identifier."""
    identifier = spdx_identifier(licence)
    return None if identifier is None else f"https://spdx.org/licenses/{identifier}.html"


def hub_licence(licence: str | None) -> str:
    """The hub's word for a licence: `other` for one that it does not list, `unknown` where none was stated."""
    if licence is None:
        return "unknown"
    identifier = spdx_identifier(licence)
    return "other" if identifier is None else _HUB[identifier]
