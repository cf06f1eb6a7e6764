"""The sources of limits: data sheets, files, a node's sibling parts, and its past."""
