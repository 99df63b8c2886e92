"""A packing as a picture: PNG for files, braille characters for a terminal."""

import io
import math

from recipes.ttt_discover.examples.packing import Packing

# The eight dots of a braille character, as bits, by (column, row).
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BLANK = 0x2800


def draw_png(packing: Packing, title: str) -> bytes:
    """Return a PNG. Equal packings give equal bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(5, 5.3))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(xlim=(0, 1), ylim=(0, 1), aspect="equal", xticks=[], yticks=[])
    greatest = max(packing.radii, default=0.0) or 1.0
    for center, radius in zip(packing.centers, packing.radii, strict=True):
        shade = 0.35 + 0.6 * radius / greatest
        axes.add_patch(Circle(center, radius, facecolor=(0.2, 0.45, 0.7, shade), edgecolor="black"))
    axes.set_title(title, fontsize=10)
    figure.tight_layout()
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=100, metadata={"Software": None})
    return written.getvalue()


def draw_text(packing: Packing, width: int = 44) -> str:
    """Return the outlines of the circles in a frame, `width` characters wide."""
    across, down = 2 * width, 4 * (width // 2)
    cells = [[0] * width for _ in range(width // 2)]
    for (x, y), radius in zip(packing.centers, packing.radii, strict=True):
        points = max(8, int(2 * math.pi * radius * across))
        for point in range(points):
            angle = 2 * math.pi * point / points
            column = int((x + radius * math.cos(angle)) * across)
            row = int((1 - y - radius * math.sin(angle)) * down)
            column, row = min(max(column, 0), across - 1), min(max(row, 0), down - 1)
            cells[row // 4][column // 2] |= _DOTS[column % 2][row % 4]
    lines = ("".join(chr(_BLANK + dots) for dots in row) for row in cells)
    frame = "-" * width
    return "\n".join([f"+{frame}+", *(f"|{line}|" for line in lines), f"+{frame}+"])
