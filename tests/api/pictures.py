# SPDX-License-Identifier: Apache-2.0 OR MIT
"""Whether a directory has so many pictures and an animation of them, as PNG says they must be, with something to see.

    python3 pictures.py DIRECTORY FRAMES
"""
import pathlib
import struct
import sys
import zlib


def chunks(path):
    """The pieces of a PNG file, in order, each with a length and a checksum that are right."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n", f"{path}: no PNG"
    found, at = [], 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind, body = data[at + 4:at + 8], data[at + 8:at + 8 + length]
        (check,) = struct.unpack_from(">I", data, at + 8 + length)
        assert check == zlib.crc32(kind + body), f"{path}: the checksum of {kind} at {at}"
        found.append((kind, body))
        at += 12 + length
    assert found[0][0] == b"IHDR" and found[-1] == (b"IEND", b""), f"{path}: it does not begin and end as it must"
    return found


def pixels(path, size, stream):
    """What a stream holds, without the byte before each row."""
    (width, height), rows = size, zlib.decompress(stream)
    assert len(rows) == (1 + width) * height, f"{path}: {len(rows)} bytes for {width} x {height} pixels"
    rows = [rows[y * (1 + width):(y + 1) * (1 + width)] for y in range(height)]
    assert all(row[0] == 0 for row in rows), f"{path}: a row is changed"
    picture = b"".join(row[1:] for row in rows)
    assert len(set(picture)) > 1, f"{path}: nothing is to be seen"
    return picture


def size_of(path, found):
    width, height, *how = struct.unpack(">IIBBBBB", found[0][1])
    palette = [body for kind, body in found if kind == b"PLTE"]
    assert how == [8, 3, 0, 0, 0] and len(palette) == 1 and len(palette[0]) == 768, f"{path}: {how}"
    return width, height


def frames(path, found):
    """The pictures of an animation."""
    size, streams, count, numbers = size_of(path, found), [], None, []
    for kind, body in found:
        if kind == b"acTL":
            count, _ = struct.unpack(">II", body)
        elif kind == b"fcTL":
            number, *rectangle = struct.unpack(">IIIII", body[:20])
            assert len(body) == 26 and tuple(rectangle) == (*size, 0, 0), f"{path}: a frame is {rectangle}"
            numbers.append(number)
            streams.append(b"")
        elif kind == b"IDAT":
            assert len(streams) == 1, f"{path}: the first frame is not before all others"
            streams[-1] += body
        elif kind == b"fdAT":
            numbers.append(struct.unpack_from(">I", body)[0])
            streams[-1] += body[4:]
    assert count == len(streams), f"{path}: {len(streams)} frames, said to be {count}"
    assert numbers == list(range(len(numbers))), f"{path}: pieces {numbers}"
    return [pixels(path, size, stream) for stream in streams]


directory, expected = pathlib.Path(sys.argv[1]), int(sys.argv[2])
singles = []
for path in sorted(directory.glob("frame-*.png")):
    found = chunks(path)
    singles.append(pixels(path, size_of(path, found), b"".join(body for kind, body in found if kind == b"IDAT")))
film = frames(directory / "animation.png", chunks(directory / "animation.png"))
assert len(singles) == expected, f"{len(singles)} pictures, not {expected}"
assert film == singles, "the animation is not made of the pictures"
assert len(set(film)) == expected, "nothing moves"
print(f"pictures: {expected} and an animation, as they must be")
