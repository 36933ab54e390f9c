"""The storage `fsspec`: see `program_support.remote_addresses.Storage`."""

from efficientdet.plugins.cluster.remote_files import copy_missing, local_copies, local_tree
from efficientdet.plugins.cluster.remote_images import read_ahead, read_remote, remote_listing
from efficientdet.plugins.cluster.remote_output import (
    local_output,
    on_this_machine,
    publish_remote,
    remote_states,
    upload_shard,
)


class FsspecStorage:
    """Files that fsspec opens."""

    local_copies = staticmethod(local_copies)
    local_tree = staticmethod(local_tree)
    copy_missing = staticmethod(copy_missing)
    listing = staticmethod(remote_listing)
    forget_listings = staticmethod(remote_listing.cache_clear)
    read = staticmethod(read_remote)
    read_ahead = staticmethod(read_ahead)
    local_output = staticmethod(local_output)
    states = staticmethod(remote_states)
    on_this_machine = staticmethod(on_this_machine)
    upload_shard = staticmethod(upload_shard)
    publish = staticmethod(publish_remote)
