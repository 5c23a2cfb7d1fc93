"""A gallery of workflow shapes, each the smallest actor that shows it. ``actors.py`` lists them."""
