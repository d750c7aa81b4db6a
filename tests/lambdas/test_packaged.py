"""The contents of a stage's function."""

import grimp

from serfer.packaging.manifest import WORKER, files_of


def test_a_functions_package_has_every_serfer_module_that_its_worker_imports():
    graph = grimp.build_graph("serfer", exclude_type_checking_imports=True, cache_dir=None)
    imported = {"serfer.lambdas.bootstrap", *graph.find_upstream_modules("serfer.lambdas", as_package=True)}
    packaged = {
        name.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".") for name, _ in files_of(WORKER.packages)
    }
    assert imported - packaged == set()
