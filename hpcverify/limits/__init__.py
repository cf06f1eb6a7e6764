"""The sources of limits: data sheets, files, a node's like parts, and its past."""
