"""Where problems come from, how an answer is judged, and what feedback it gets."""
