"""moto's server for one user, whose Step Functions sign their calls of Lambda: `python -P moto_app.py PORT`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple
from werkzeug.wrappers import Response

from serfer.local.lambda_.socket_owner import is_ours

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_HOST = "127.0.0.1"


class _Session(boto3.Session):
    """Makes clients with the Lambda service's credentials in the place of moto's own, which are fixed."""

    def client(self, *arguments: Any, **given: Any) -> Any:  # noqa: ANN401 - boto3's
        given["aws_access_key_id"] = os.environ["LOCAL_ACCESS_KEY_ID"]
        given["aws_secret_access_key"] = os.environ["LOCAL_SECRET_ACCESS_KEY"]
        return super().client(*arguments, **given)


def main(port: int) -> None:
    boto3.DEFAULT_SESSION = _Session()
    moto = DomainDispatcherApplication(create_backend_app)

    def app(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if is_ours((environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"])), (_HOST, port)):
            answer: Iterable[bytes] = moto(environ, start_response)
            return answer
        return Response("only for the user that started it", 403)(environ, start_response)

    run_simple(_HOST, port, app, threaded=True, request_handler=MotoRequestHandler)


if __name__ == "__main__":
    main(int(sys.argv[1]))
