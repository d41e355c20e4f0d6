"""Builds the optional CPU library (kernels/cpu); everything else is in pyproject.toml."""

from glob import glob

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "decodex.kernels.cpu._C",
            sources=sorted(glob("kernels/cpu/*.cpp")),
            depends=sorted(glob("kernels/cpu/*.inc") + glob("kernels/cpu/*.h") + glob("kernels/cpu/*.def")),
            language="c++",
            extra_compile_args=[
                *("-O3", "-g0", "-std=c++17", "-pthread", "-ffp-contract=off", "-fvisibility=hidden"),
                *("-Wno-psabi", "-Wno-maybe-uninitialized"),
            ],
            extra_link_args=["-pthread"],
            py_limited_api=True,
            optional=True,  # no compiler: the reference bodies and oneDNN do the work
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
