"""
How far a part is from its peers, and whether that means anything.

`rule` has the constants and formulas, `values` makes one value per part of its runs, `fleet`
judges one metric of a fleet, `groups` compares nodes, racks and versions, `cause` says why.
"""
