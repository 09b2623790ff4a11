"""A media pipeline: images are made, shrunk and measured, framed in their own colour, and laid out on a contact sheet.

pip install -e '.[examples]'    # Pillow
perdure run examples/contact_sheet.py --run-id sheet
perdure run examples/contact_sheet.py --input count=100 --input folder=images

An image is shrunk as soon as it is there, while the others are still being drawn. Two streams that come from the same images meet
again by themselves: each thumbnail gets the colour of its own image. Drawing keeps the processor busy, so it is done in
processes. What travels is the path of each file, and files are replaced as a whole: making one twice does no harm.
"""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

from perdure import Outputs, collect, node, stage, workflow

SIZE = (1200, 800)
THUMBNAIL = (180, 120)
COLUMNS = 6

Colour = tuple[int, int, int]


class Drawn(Outputs):
    path: str
    title: str


@node
def numbers(count: int) -> list[int]:
    return list(range(1, count + 1))


@node(executor="process", concurrency=2)
def draw(number: int, folder: str) -> Drawn:
    """Draw hills under a sky: the same ones for the same number."""
    chance = random.Random(number)
    width, height = SIZE
    night, day = (Image.new("RGB", SIZE, random_colour(chance, low, high)) for low, high in ((0, 90), (150, 255)))
    image = Image.composite(day, night, Image.linear_gradient("L").resize(SIZE))
    pen = ImageDraw.Draw(image)
    x, y, r = chance.randrange(width), chance.randrange(height // 2), chance.randrange(30, 90)
    pen.ellipse((x - r, y - r, x + r, y + r), fill=(255, 240, 200))
    for layer in range(4):
        top, wave = height * (0.45 + 0.13 * layer), chance.uniform(90, 260)
        ridge = [(x, top + 40 * math.sin(x / wave + layer) + 9 * math.sin(x / 17)) for x in range(0, width + 4, 4)]
        pen.polygon([(0, height), *ridge, (width, height)], fill=random_colour(chance, 20, 190 - 40 * layer))
    return Drawn(path=save(image, f"{folder}/images/{number:03}.png"), title=f"No. {number}")


def random_colour(chance: random.Random, low: int, high: int) -> Colour:
    return chance.randint(low, high), chance.randint(low, high), chance.randint(low, high)


@node(concurrency=2)
def shrink(path: str, folder: str) -> str:
    with Image.open(path) as image:
        return save(ImageOps.fit(image, THUMBNAIL), f"{folder}/thumbnails/{Path(path).stem}.png")


@node(concurrency=2)
def colour_of(path: str) -> Colour:
    """Return the colour that the image has on average."""
    with Image.open(path) as image:
        pixel = image.resize((1, 1), Image.Resampling.BOX).getpixel((0, 0))
    assert isinstance(pixel, tuple)
    red, green, blue = pixel[:3]
    return int(red), int(green), int(blue)


@node
def frame(thumbnail: str, colour: Colour, title: str, folder: str) -> str:
    with Image.open(thumbnail) as image:
        framed = ImageOps.expand(image, border=(8, 8, 8, 28), fill=tuple(colour))
    ink = (255, 255, 255) if sum(colour) < 384 else (0, 0, 0)
    ImageDraw.Draw(framed).text((10, framed.height - 22), title, fill=ink)
    return save(framed, f"{folder}/framed/{Path(thumbnail).stem}.png")


@node
def lay_out(paths: list[str], folder: str) -> str:
    width, height = THUMBNAIL[0] + 32, THUMBNAIL[1] + 52
    rows = -(-len(paths) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * width, max(rows, 1) * height), (245, 245, 240))
    for place, path in enumerate(paths):
        with Image.open(path) as image:
            sheet.paste(image, (place % COLUMNS * width + 8, place // COLUMNS * height + 8))
    return save(sheet, f"{folder}/sheet.png")


def save(image: Image.Image, path: str) -> str:
    """Write the image so that nobody ever sees half of it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    part = f"{path}.part"
    image.save(part, format="PNG", compress_level=1)
    os.replace(part, path)
    return path


@workflow
def contact_sheet(count: int = 30, folder: str = "pictures") -> str:
    with stage("draw"):
        drawn = draw.map(numbers(count), folder=folder)
    with stage("shrink"):
        thumbnails = shrink.map(drawn.path, folder=folder)
        framed = frame.map(thumbnails, colour_of.map(drawn.path), drawn.title, folder=folder)
    with stage("lay out"):
        return lay_out(collect(framed), folder)


if __name__ == "__main__":
    print(contact_sheet.run())
