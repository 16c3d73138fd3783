"""Late partials at the center: registered for closed windows, then merged into what was published."""
