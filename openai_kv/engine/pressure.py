"""Tells the log when the KV pool is about to be full of what can't go."""

import logging

logger = logging.getLogger(__name__)
LEVELS = (0.90, 0.95, 0.99)
MARGIN = 0.05


class PressureLog:
    """One line when memory pressure gets to a level, and not again before it was lower by MARGIN: it sways with every
    block. A jump over several levels is one line, of the highest.
    """

    def __init__(self) -> None:
        self._told = 0

    def watch(self, pressure: float) -> None:
        """Once a step; see CacheStats.memory_pressure."""
        while self._told and pressure < LEVELS[self._told - 1] - MARGIN:
            self._told -= 1
        if self._told < len(LEVELS) and pressure >= LEVELS[self._told]:
            self._told = sum(pressure >= level for level in LEVELS)
            percent = 100 * LEVELS[self._told - 1]
            logger.warning("%.0f %% of the KV blocks are in use or pinned: requests may have to wait", percent)
