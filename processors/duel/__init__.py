"""The stages of a duel: turns are drawn, answered by two players, judged, and made into rows."""
