"""Where limits come from: data sheets, files, the node's other parts, the node's past."""
