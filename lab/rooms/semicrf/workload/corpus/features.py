"""MFCC and log-mel features of a sentence. numpy only."""

from __future__ import annotations

import numpy as np

RATE_HZ, WINDOW, HOP = 16000, 400, 160
BANDS = 40
"""Of the cepstra: there are no more coefficients than bands."""


def mfcc(samples: np.ndarray, count: int = 13) -> np.ndarray:
    """(T, 3 * count): cepstra of 40 mel bands with first and second differences."""
    log_bands = log_mel(samples, BANDS)
    band = np.arange(BANDS)
    basis = np.sqrt(2 / BANDS) * np.cos(np.pi * np.outer(band + 0.5, np.arange(count)) / BANDS)
    basis[:, 0] /= np.sqrt(2)
    cepstra = log_bands @ basis
    slope = _delta(cepstra)
    return np.concatenate([cepstra, slope, _delta(slope)], axis=1).astype(np.float32)


def log_mel(samples: np.ndarray, bands: int = 80) -> np.ndarray:
    """(T, bands) log energies of 25 ms windows every 10 ms, centred by reflection; T = 1 + N // hop."""
    if len(samples) < WINDOW:
        return np.zeros((0, bands), dtype=np.float32)
    padded = np.pad(samples, WINDOW // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP]
    power = np.abs(np.fft.rfft(frames * np.hanning(WINDOW + 1)[:-1], n=512)) ** 2
    energies: np.ndarray = np.log(power @ _filters(bands).T + 1e-10)
    return energies.astype(np.float32)


def _filters(bands: int) -> np.ndarray:
    """(bands, 257) triangles equally wide in mel (HTK's formula)."""
    mel_top = 2595 * np.log10(1 + RATE_HZ / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, mel_top, bands + 2) / 2595) - 1)
    bins = np.linspace(0, RATE_HZ / 2, 257)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    filters: np.ndarray = np.clip(np.minimum(rising, falling), 0.0, None)
    return filters


def _delta(values: np.ndarray) -> np.ndarray:
    """Regression slope over two frames on each side, the ends repeated (HTK's delta)."""
    if not len(values):
        return values
    padded = np.pad(values, ((2, 2), (0, 0)), mode="edge")
    slope: np.ndarray = (padded[3:-1] - padded[1:-3] + 2 * (padded[4:] - padded[:-4])) / 10
    return slope
