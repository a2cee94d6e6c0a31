"""Promises of stacked layers, mounted by the kernel's overlayfs: they show what the OCI image spec says."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ate.asyncio_room import open_asyncio_room
from ate.node.images import ImageStore, import_path
from ate.node.images.disk import ImageDirectory
from ate.node.images.layers import install_layer
from ate.node.network import interfaces as kernel
from tests.image_tars import Item, digest, image, layout, tar

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="overlay mounts need root")


async def test_a_folder_that_a_layer_does_not_name_keeps_what_it_is_below(tmp_path: Path):
    base = tar(
        [
            Item("usr", "dir"),
            Item("usr/lib", "dir", mode=0o750, uid=5),
            Item("usr/lib/libc", value="c"),
            Item("lib", "symlink", "usr/lib"),
            Item("tmp", "dir", mode=0o1777),
            Item("old", "dir", mode=0o700),
        ]
    )
    middle = tar([Item("named", "dir"), Item(".wh.old")])
    top = tar([Item("lib/deep/libx", value="x"), Item("tmp/file", value="t"), Item("old/new", value="n")])
    source = layout(image([base, middle, top]), tmp_path / "layout")
    alone = layout(image([tar([Item("other", "dir")]), top]), tmp_path / "alone", "x.y/alone")
    async with open_asyncio_room() as room:
        directory = tmp_path / "images"
        (reference,) = await import_path(directory, source)
        (other,) = await import_path(directory, alone)
        found = await ImageStore(directory, room).ensure(reference)
        plain = await ImageStore(directory, room).ensure(other)
    target = tmp_path / "merged"
    target.mkdir()
    kernel.mount("overlay", target, "overlay", kernel.MS_RDONLY, f"lowerdir={':'.join(map(str, found.layers))}")
    try:
        assert (target / "lib").is_symlink()
        assert (target / "lib/libc").read_text() == "c" and (target / "usr/lib/deep/libx").read_text() == "x"
        assert ((target / "usr/lib").stat().st_uid, (target / "usr/lib").stat().st_mode & 0o7777) == (5, 0o750)
        assert (target / "tmp").stat().st_mode & 0o7777 == 0o1777 and (target / "tmp/file").read_text() == "t"
        assert (target / "old").stat().st_mode & 0o7777 == 0o755
    finally:
        kernel.unmount(target)
    # The layer as it is, which another image stacks on other things, is untouched.
    assert (plain.layers[0] / "lib/deep/libx").read_text() == "x" and not (plain.layers[0] / "lib").is_symlink()
    assert list((directory / "staging").iterdir()) == []


NAME = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map("/".join)
ENTRY = st.one_of(
    st.builds(Item, NAME, st.just("dir")),
    st.builds(Item, NAME, st.just("file"), st.sampled_from(["1", "2", "3"])),
    st.builds(Item, NAME, st.just("hardlink"), NAME),
    NAME.map(lambda name: Item("/".join((*name.split("/")[:-1], ".wh." + name.split("/")[-1])))),
    NAME.map(lambda name: Item(f"{name}/.wh..wh..opq")),
)
Tree = dict[tuple[str, ...], str]
"""Path -> content; folders have "/"."""


@dataclasses.dataclass
class Model:
    """One layer by the words of the image spec: what it adds, and what it hides of the layers below."""

    tree: Tree = dataclasses.field(default_factory=dict)
    hidden: set[tuple[str, ...]] = dataclasses.field(default_factory=set)
    opaque: set[tuple[str, ...]] = dataclasses.field(default_factory=set)

    def add(self, item: Item) -> bool:
        """False when the entry makes no sense here; it is left out of the layer then."""
        parts = tuple(item.name.split("/"))
        if any(self.tree.get(parts[:depth], "/") != "/" for depth in range(1, len(parts))):
            return False
        target = tuple(item.value.split("/"))
        if item.kind == "hardlink" and (self.tree.get(target, "/") == "/"):
            return False
        for depth in range(1, len(parts)):
            self.tree.setdefault(parts[:depth], "/")
        if parts[-1] == ".wh..wh..opq":
            self.opaque.add(parts[:-1])
        elif parts[-1].startswith(".wh."):
            self.hidden.add((*parts[:-1], parts[-1].removeprefix(".wh.")))
        elif item.kind == "dir":
            if self.tree.get(parts) != "/":
                self._remove(self.tree, parts)
                self.tree[parts] = "/"
        else:
            content = self.tree[target] if item.kind == "hardlink" else item.value
            if not (item.kind == "hardlink" and target[: len(parts)] == parts):
                self._remove(self.tree, parts)
            elif target != parts:
                return False  # it would remove the file it links to
            self.tree[parts] = content
        return True

    @staticmethod
    def _remove(tree: Tree, parts: tuple[str, ...]) -> None:
        for path in [path for path in tree if path[: len(parts)] == parts]:
            del tree[path]

    def over(self, lower: Tree) -> Tree:
        """What both layers show together."""
        result = dict(lower)
        for parts in self.hidden:
            self._remove(result, parts)
        for parts in self.opaque:
            if self.tree.get(parts) == "/":
                for path in [path for path in result if path[: len(parts)] == parts and path != parts]:
                    del result[path]
        for path, content in sorted(self.tree.items()):
            if not (content == "/" and result.get(path) == "/"):
                self._remove(result, path)
                result[path] = content
        return result


def hides(item: Item, lower: Tree) -> bool:
    """Whether a whiteout has something to hide."""
    *folder, base = item.name.split("/")
    return (*folder, base.removeprefix(".wh.")) in lower or (base == ".wh..wh..opq" and tuple(folder) in lower)


def shown(folder: Path) -> Tree:
    return {
        path.relative_to(folder).parts: "/" if path.is_dir() else path.read_text() for path in sorted(folder.rglob("*"))
    }


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(ENTRY, max_size=8), min_size=2, max_size=3))
def test_stacked_layers_show_what_the_image_spec_says(stack: list[list[Item]]):
    with tempfile.TemporaryDirectory() as name:
        disk = ImageDirectory(Path(name) / "images")
        expected: Tree = {}
        layers: list[Path] = []
        for number, items in enumerate(stack):
            model = Model()
            # A whiteout of nothing is a known weakness: the kernel lists it where a folder has nothing below. Each
            # layer has a file of its own, because overlayfs refuses one folder twice in a stack.
            wanted = [item for item in items if ".wh." not in item.name or hides(item, expected)]
            wanted.append(Item(f"layer{number}", value=str(number)))
            data = tar([item for item in wanted if model.add(item)])
            expected = model.over(expected)
            blob = Path(name) / f"blob{number}"
            blob.write_bytes(data)
            with disk.stage() as staging:
                install_layer(disk, blob, staging, "layer", digest(data), lambda: None)
            layers.insert(0, disk.layer(digest(data)))
        target = Path(name) / "merged"
        target.mkdir()
        lower = ":".join(str(layer) for layer in layers)
        kernel.mount("overlay", target, "overlay", kernel.MS_RDONLY, f"lowerdir={lower}")
        try:
            assert shown(target) == expected
        finally:
            kernel.unmount(target)
