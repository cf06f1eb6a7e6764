"""
The fleet as a judge: how far a part is from its peers, and whether that means anything.

`rule` has the constants and formulas, `reduce` makes one value per part of its runs, `judge`
judges one metric of a fleet, `place` names the node or the rack, `cause` says why.
"""
