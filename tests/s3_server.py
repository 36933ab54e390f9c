"""A server of the S3 protocol on the loopback interface, which clients find by the environment, as users set it."""

import contextlib

import requests
import s3fs
from moto.server import ThreadedMotoServer

BUCKET = "bucket"


@contextlib.contextmanager
def s3_server(patch):
    """Yield a file system with an empty bucket; `patch` sets the environment."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        requests.post(
            "http://{}:{}/moto-api/reset".format(*server.get_host_and_port()), timeout=10
        )  # other tests' files
        patch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        patch.setenv("AWS_ACCESS_KEY_ID", "key")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        s3fs.S3FileSystem.clear_instance_cache()  # it has the address of another test's server
        system = s3fs.S3FileSystem()
        system.mkdir(BUCKET)
        yield system
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
