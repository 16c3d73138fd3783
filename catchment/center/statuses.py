"""How far along a published window is.

A status never goes back, except to `suspended`, and from exact to on_time where late records of the window were
sampled: it then lacks records until they are repaired.
"""

EARLY, ON_TIME, EXACT, FINAL = "early", "on_time", "exact", "final"
SUSPENDED = "suspended"  # closed, without records that a suspended fragment has skipped

LATE_ARE_OUT = "the horizon has passed; late records are out"  # why a window that is over is not final
