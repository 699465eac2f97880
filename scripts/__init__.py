"""What the recipes of the Justfile run, the image's build and its proof."""
