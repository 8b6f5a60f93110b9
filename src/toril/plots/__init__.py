"""Plots as SVG text, for pages: no library, no script and no style is needed to draw them."""

from __future__ import annotations

from toril.plots.time_plots import Series, bands, sparkline, stacked_bars, timeline

__all__ = ["Series", "bands", "sparkline", "stacked_bars", "timeline"]
