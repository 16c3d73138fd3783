"""Views of views: their windows follow from the windows that another view has published."""
