"""
The rule by which a part is compared with its peers: constants and formulas, no data.

One metric of a fleet is a list of values, one per part: the median of the part's runs. With m
the median of the list and MAD the median of abs(x - m):

    spread    s = 1.4826 * MAD / abs(m)              relative; of normal values the sigma
    distance  d = (x - m) / abs(m), or (m - x) / abs(m) where a low value is the bad one
    score     z = d / s

A part is an *outlier* if it is far in both senses: d is at least the floor of the metric (a
practical size, about 2 %) and z is beyond what chance gives among as many peers. Neither is
enough. On Longhorn's PageRank (s = 0.09 %) z > 4 alone names a GPU that is 0.4 % slow, and a
rule of 5 % alone misses a whole node that is 4 % slow in BERT (s = 0.55 %).

How far chance goes depends on the number of peers and on how many are far: p is the tail of
Student's t beyond z, and Benjamini and Hochberg's procedure (J. R. Stat. Soc. B 57, 1995) keeps
the share of healthy parts among the named ones below `FALSE_NAMES`.

Most metrics of most nights have nothing to judge: `screen` says so from a few numbers that a
database computes.
"""

from __future__ import annotations

DEFAULT_FLOOR = 0.02
"""The least relative distance that is worth a word, where the table has no other."""
MIN_PEERS = 8
"""Fewer nodes are of one kind, and have no differences of their own that could be measured."""
MIN_SPREAD_PEERS = 16
"""Of fewer values, the MAD knows so little that one bad one would hide."""
MIN_COMPARED = 3
"""Of two values, nobody can say which is the bad one."""
FEW_PEERS = 5
"""Among fewer values, an outlier is twice the floor away."""
MIN_STEPS = 1.5
"""Values one step of their record apart do not differ: no floor is less than so many steps."""
SCREEN_SCORE = 3.0
"""The z below which no part is ever named, however many others are."""
FALSE_SHARE = 0.01
"""The share of false alarms that a look at everything may have."""
FALSE_NAMES = 0.002
"""The expected share of healthy parts among those that are named in a metric; of fleets without a
bad part, the share in which one is named. A site has many metrics, and what differs lasts."""


def find_distance(value: float, centre: float, *, low_is_bad: bool) -> float:
    """Return how much worse than *centre* the *value* is: 0.03 is 3 %, a negative one is better."""
    return (centre - value if low_is_bad else value - centre) / abs(centre)


def widen_floor(floor: float, peers: int) -> float:
    """Return the least distance that is worth a word among so many *peers*."""
    return floor if peers >= FEW_PEERS else 2 * floor
