"""A handler in a package of the function's own, as `serfer.lambdas.bootstrap.handler` will be."""


def handler(event, _context):
    return {"deep": event}
