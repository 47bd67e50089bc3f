"""What this plugin was built for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from hyperparallel.errors import ConfigError

BUILT_FOR = {"mindformers": "1.9.", "mindspore": "2.9."}
"""Package -> how its version starts."""


def check_versions() -> None:
    """Refuse other versions of MindFormers and MindSpore: the plugin takes their layers apart.

    Raises:
        ConfigError: names what is installed and what to install.
    """
    for package, wanted in BUILT_FOR.items():
        try:
            found = version(package)
        except PackageNotFoundError:
            found = "missing"
        if not found.startswith(wanted):
            raise ConfigError(
                f"{package} is {found}; mindformers_patch was built for {wanted}x: pip install mindformers==1.9.0, "
                "which brings MindSpore 2.9.0"
            )
