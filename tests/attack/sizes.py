"""How much is tried: by the environment, which ``make attack`` sets."""

import os

KILLS = int(os.environ.get("ATTACK_KILLS", "12"))  # of all commands together
LINES = int(os.environ.get("ATTACK_LINES", "50000"))  # damaged records
FAULTS = int(os.environ.get("ATTACK_FAULTS", "0"))  # writes of a run that fail, evenly; 0: all
SIZES = {"kills": KILLS, "lines": LINES, "faults": FAULTS or "all"}
