"""The pictures of the docs: what happened in a run, and what one needs, drawn as SVG; the demo and the console, photographed."""
