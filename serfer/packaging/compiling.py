"""Compiles a package's directory ahead of time: called here, or run by another Python as `PYTHON compiling.py DIR`.

Lambda's code directory is read-only and packing changes times, so what is compiled is never checked against its source.
"""

import compileall
import py_compile
import sys


def compile_directory(directory: str) -> None:
    """Compile all modules below a directory; one that cannot be compiled is left as it is."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(directory, quiet=2, stripdir=directory, invalidation_mode=unchecked)


if __name__ == "__main__":
    compile_directory(sys.argv[1])
