"""How Sphinx renders the book: ``make docs``. The pages are Markdown and read well without it."""

from importlib.metadata import version as read_version

project = "hpcverify"
version = release = read_version("hpcverify")
copyright = "the authors of hpcverify, Apache-2.0"  # noqa: A001 - Sphinx reads this name

# The source is the repository, so that links between the book and README.md are checked.
root_doc = "docs/index"
include_patterns = [
    *("docs/*.md", "docs/**/*.md", "*.md"),
    "packaging/*/README.md",
]
# docs/internals is for developers: it is read in the repository.
exclude_patterns = ["docs/internals", ".*", "build", "**/node_modules", "**/__pycache__"]

extensions = ["myst_parser"]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"hpcverify {version}"
html_show_sourcelink = False
html_copy_source = False
# Excerpts beside search results are fetched, which browsers refuse for files.
html_show_search_summary = False
html_static_path = ["_static"]
html_css_files = ["book.css"]
