"""The suite; its folders mirror the packages."""
