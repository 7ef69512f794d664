"""Every figure and table of the four papers, by name."""

from __future__ import annotations

from benchmarks.reproduce import dpmf, gaussian, pdp, sdcf
from benchmarks.reproduce.cases import Figure

FIGURES: dict[str, Figure] = {
  figure.name: figure
  for paper in (gaussian, dpmf, pdp, sdcf)
  for figure in paper.FIGURES
}
PAPERS = tuple(dict.fromkeys(figure.paper for figure in FIGURES.values()))
