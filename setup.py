"""Install the package `hyperparallel` and its console script."""

from pathlib import Path

from setuptools import find_packages, setup

_FILES = ["pillow>=10", "tokenizers>=0.20"]
_PLAN = ["ortools>=9.9,<9.10"]  # later ones hold protobuf below what MindSpore 2.10 asks for

setup(
    name="hyperparallel",
    version="0.1.0",
    description="A small algebra of pipeline schedules that trains multimodal LLMs on MindSpore",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.12",
    packages=find_packages(include=["hyperparallel", "hyperparallel.*", "mindformers_patch"]),
    # Each dependency has its reason in the README, section "Dependencies".
    install_requires=[
        "mindspore>=2.9,<2.11",
        "numpy<2",
        "psutil>=5",
        "pydantic>=2.5",
        "PyYAML>=6",
        "safetensors>=0.4",
        "scikit-learn>=1.3",
        "tqdm>=4.60",
    ],
    extras_require={
        "mindformers": ["mindformers==1.9.0"],
        "figure": ["matplotlib>=3.7"],
        "files": _FILES,
        "plan": _PLAN,
        "test": ["pytest>=8,<9", "pytest-xdist>=3.5", "hypothesis>=6", "ruff>=0.6", "matplotlib>=3.7", *_FILES, *_PLAN],
    },
    entry_points={"console_scripts": ["hyperparallel = hyperparallel.cli:main"]},
)
