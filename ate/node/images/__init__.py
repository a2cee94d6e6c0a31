"""Container images by digest: pulled from registries or imported, unpacked once a layer, handed out as folders.

The node agent asks `ImageStore.ensure`; the command line imports archives and the built-in pause image beside it.
"""

from ate.node.images.layout import import_path
from ate.node.images.pause import build_pause_image
from ate.node.images.store import Image, ImageStore

__all__ = ["Image", "ImageStore", "build_pause_image", "import_path"]
